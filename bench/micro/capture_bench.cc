// What captures cost: a prompt alone, with attention and hidden states kept, with every tap kept,
// and with the standing form of attention; then tokens of an answer without and with that. In
// memory, in one process, in turn; prints the medians as JSON, and how many times an ordinary
// prompt each took that ran just before.
//
// KINDs (of those that it prints without) and TAPs (names or patterns): these alone are timed.
//
//   capture_bench MODEL.gguf [TOKENS [THREADS [ROUNDS [KIND|TAP…]]]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "inspect/attention_top.h"
#include "inspect/capture.h"
#include "kernels/table.h"
#include "model/loaded_model.h"

namespace cutaway {
namespace {

constexpr int64_t kDecodeSteps = 64, kTopKeys = 8;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(const model::LoadedModel& model, const kernels::KernelTable& table, ThreadPool& pool,
        int64_t n)
      : runner_(model, table, pool, false),
        shape_(model.shape()),
        pages_({shape_.n_layers, shape_.n_kv_heads, shape_.d_head, shape_.d_head,
                kernels::KvType::kF16},
               (n + kDecodeSteps) / kernels::kTilePositions + 2),
        top_(kTopKeys, shape_.n_layers, {}) {
    for (int64_t i = 0; i < n; ++i) {
      tokens_.push_back(
          static_cast<int32_t>((i * 7919 + 13) % std::min<int64_t>(shape_.vocab, 30000)));
    }
  }

  double prefill(std::vector<trace::Probe*> probes,
                 inference::WantLogits logits = inference::WantLogits::kLast) {
    inference::SequenceState sequence(pages_);
    return step(sequence, tokens_, std::move(probes), logits);
  }

  double captured(const std::vector<std::string>& names) {
    inspect::CaptureJob job;
    auto selection = inspect::select_taps({names, "", "", "", ""}, shape_);
    if (!selection.ok()) {
      std::fprintf(stderr, "%s\n", selection.error().message.c_str());
      return -1;
    }
    job.selection = std::move(*selection);
    job.range = *job.selection.range_of_text(static_cast<int64_t>(tokens_.size()));
    auto capture =
        inspect::capture_in_memory(runner_, pages_, tokens_, job, {}, std::move(kept_[names]));
    if (!capture.ok()) return -1;
    kept_[names] = std::move(*capture);
    return static_cast<double>(kept_[names].outcome.forward_ns) / 1e6;
  }

  double with_top() {
    top_.clear();
    return prefill({&top_});
  }

  // Milliseconds a token.
  double decode(bool top) {
    inference::SequenceState sequence(pages_);
    step(sequence, tokens_, {});
    top_.clear();
    const int32_t token = 11;
    double total = 0;
    for (int64_t i = 0; i < kDecodeSteps; ++i) {
      total += step(sequence, {&token, 1},
                    top ? std::vector<trace::Probe*>{&top_} : std::vector<trace::Probe*>{});
    }
    return total / static_cast<double>(kDecodeSteps);
  }

 private:
  double step(inference::SequenceState& sequence, std::span<const int32_t> tokens,
              std::vector<trace::Probe*> probes,
              inference::WantLogits logits = inference::WantLogits::kLast) {
    runner_.set_probes(std::move(probes));
    const inference::StepInput input{&sequence, tokens, logits};
    const int64_t start = now_ns();
    const bool ok = runner_.step(std::span(&input, 1)).ok();
    const double ms = static_cast<double>(now_ns() - start) / 1e6;
    runner_.set_probes({});
    return ok ? ms : -1;
  }

  inference::Runner runner_;
  arch::ModelShape shape_;
  kv::PagePool pages_;
  std::vector<int32_t> tokens_;
  inspect::AttentionTop top_;
  std::map<std::vector<std::string>, inspect::MemoryCapture> kept_;
};

int run(int argc, char** argv) {
  const auto number = [&](int i, int64_t otherwise) {
    return argc > i ? std::atoll(argv[i]) : otherwise;
  };
  if (argc < 2) {
    std::fprintf(stderr,
                 "usage: capture_bench MODEL.gguf [TOKENS [THREADS [ROUNDS [KIND|TAP...]]]]\n");
    return 2;
  }
  ThreadPool pool(static_cast<int>(number(3, 2)));
  auto model = model::LoadedModel::load(argv[1], pool, {});
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", model.error().message.c_str());
    return 1;
  }
  const auto selection = kernels::select_table("");
  Bench bench(**model, *selection->table, pool, number(2, 512));
  std::vector<std::pair<std::string, std::function<double()>>> kinds = {
      {"prefill", [&] { return bench.prefill({}); }},
      {"prefill_all_logits", [&] { return bench.prefill({}, inference::WantLogits::kAll); }},
      {"attention_hidden", [&] { return bench.captured({"pattern", "hook_embed", "resid_post"}); }},
      {"all", [&] { return bench.captured({"all"}); }},
      {"top", [&] { return bench.with_top(); }},
      {"decode", [&] { return bench.decode(false); }},
      {"decode_top", [&] { return bench.decode(true); }}};
  if (argc > 5) {  // these alone
    decltype(kinds) chosen;
    for (int i = 5; i < argc; ++i) {
      const std::string name = argv[i];
      const auto kind = std::find_if(kinds.begin(), kinds.end(),
                                     [&](const auto& one) { return one.first == name; });
      chosen.emplace_back(
          name,
          kind != kinds.end() ? kind->second : [&bench, name] { return bench.captured({name}); });
    }
    kinds = std::move(chosen);
  }
  std::vector<std::vector<double>> times(kinds.size()), ratios(kinds.size());
  const int64_t rounds = number(4, 7);
  for (int64_t round = 0; round < rounds + 1; ++round) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      // Each stands beside an ordinary prompt of its own, whose caches it finds.
      const double plain = bench.prefill({});
      const double ms = kinds[i].second();
      if (round == 0) continue;  // it warms up
      times[i].push_back(ms);
      ratios[i].push_back(ms / plain);
    }
  }
  std::printf("{");
  for (size_t i = 0; i < kinds.size(); ++i) {
    std::printf("%s\"%s\": {\"ms\": %.3f, \"per_prompt\": %.4f}", i == 0 ? "" : ",\n ",
                kinds[i].first.c_str(), median(times[i]), median(ratios[i]));
  }
  std::printf("}\n");
  return 0;
}

}  // namespace
}  // namespace cutaway

int main(int argc, char** argv) { return cutaway::run(argc, argv); }
