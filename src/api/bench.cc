#include <algorithm>

#include "api/impl.h"
#include "base/clock.h"

namespace cutaway {
namespace {

using api::ModelImpl;
using inference::SequenceState;
using inference::StepInput;
using inference::WantLogits;

// Token ids that differ and are the same in every run: what is computed does not depend on them.
std::vector<int32_t> filler(int64_t n, int64_t vocab) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  uint32_t state = 12345;
  for (int32_t& token : tokens) {
    state = state * 1664525u + 1013904223u;
    token = static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocab));
  }
  return tokens;
}

struct Bench {
  const ModelImpl& model;
  inference::Runner runner;
  kv::PagePool pages;
  int64_t chunk;

  Status prefill(SequenceState& sequence, std::span<const int32_t> tokens) {
    for (size_t at = 0; at < tokens.size();) {
      const size_t n = std::min(static_cast<size_t>(chunk), tokens.size() - at);
      const bool last = at + n == tokens.size();
      const StepInput input{&sequence, tokens.subspan(at, n),
                            last ? WantLogits::kLast : WantLogits::kNone};
      CUTAWAY_TRY(runner.step(std::span(&input, 1)));
      at += n;
    }
    return {};
  }

  // Tokens per second of a prompt of n tokens in an empty context.
  Result<double> time_prefill(int64_t n) {
    SequenceState sequence(pages);
    const std::vector<int32_t> tokens = filler(n, model.model().shape().vocab);
    const int64_t start = now_ns();
    CUTAWAY_TRY(prefill(sequence, tokens));
    return static_cast<double>(n) * 1e9 / static_cast<double>(now_ns() - start);
  }

  // Tokens per second, all sequences together, of n decode steps from `depth` tokens on.
  Result<double> time_decode(int64_t n, int64_t batch, int64_t depth) {
    std::vector<std::unique_ptr<SequenceState>> sequences;
    const std::vector<int32_t> context =
        filler(std::max<int64_t>(1, depth), model.model().shape().vocab);
    for (int64_t b = 0; b < batch; ++b) {
      sequences.push_back(std::make_unique<SequenceState>(pages));
      CUTAWAY_TRY(prefill(*sequences.back(), context));
    }
    std::vector<int32_t> next(static_cast<size_t>(batch), context.back());
    const int64_t start = now_ns();
    for (int64_t step = 0; step < n; ++step) {
      std::vector<StepInput> inputs;
      inputs.reserve(sequences.size());
      for (size_t b = 0; b < sequences.size(); ++b) {
        inputs.push_back({sequences[b].get(), std::span(&next[b], 1), WantLogits::kLast});
      }
      CUTAWAY_ASSIGN(const ops::Rows logits, runner.step(inputs));
      for (size_t b = 0; b < next.size(); ++b) {
        const float* row = logits.row(static_cast<int64_t>(b));
        next[b] = static_cast<int32_t>(std::max_element(row, row + logits.d) - row);
      }
    }
    return static_cast<double>(n * batch) * 1e9 / static_cast<double>(now_ns() - start);
  }
};

Json summarize(const std::string& test, int64_t batch, int threads, std::vector<double> tps,
               double bytes_per_token) {
  std::sort(tps.begin(), tps.end());
  const double median = tps.size() % 2 == 1 ? tps[tps.size() / 2]
                                            : (tps[tps.size() / 2 - 1] + tps[tps.size() / 2]) / 2;
  return {{"test", test},
          {"batch", batch},
          {"threads", threads},
          {"tps", {{"median", median}, {"min", tps.front()}, {"max", tps.back()}}},
          {"bytes_per_token", bytes_per_token},
          {"achieved_gbps", median * bytes_per_token / 1e9}};
}

Status check(const BenchRequest& request, int64_t context) {
  const auto wrong = [](const char* field, int64_t value, const std::string& expected) {
    return Error{ErrorCode::kInvalidArgument,
                 std::string(field) + " is " + std::to_string(value) + ", must be " + expected,
                 field};
  };
  if (request.prefill < 0) return wrong("prefill", request.prefill, "0 (leave out) or more");
  if (request.decode < 0) return wrong("decode", request.decode, "0 (leave out) or more");
  if (request.depth < 0) return wrong("depth", request.depth, "0 or more");
  if (request.repetitions < 1) return wrong("repetitions", request.repetitions, "1 or more");
  for (const int64_t batch : request.batch) {
    if (batch < 1 || batch > 4096) return wrong("batch", batch, "1 to 4096");
  }
  const int64_t need =
      std::max(request.prefill, std::max<int64_t>(1, request.depth) + request.decode);
  if (need > context) {
    return Error{ErrorCode::kTooLarge,
                 "the tests need " + std::to_string(need) + " tokens; the context holds " +
                     std::to_string(context),
                 "context"};
  }
  return {};
}

}  // namespace

Result<Json> bench(const Model& model, const BenchRequest& request, const SessionOptions& options) {
  const auto& impl = static_cast<const ModelImpl&>(model);
  Engine::Impl& engine = impl.engine();
  const trace::Attach attach(engine.tracer.get());
  CUTAWAY_SPAN(span, "api::bench", "prefill", request.prefill, "decode", request.decode, "depth",
               request.depth, "repetitions", request.repetitions);
  CUTAWAY_ASSIGN(const api::ResolvedSession resolved, api::resolve_session(options, impl.model()));
  CUTAWAY_TRY(check(request, resolved.context));
  const std::scoped_lock lock(engine.working);
  const int64_t most =
      request.batch.empty() ? 1 : *std::max_element(request.batch.begin(), request.batch.end());
  Bench bench{impl,
              {impl.model(), *engine.selection.table, *engine.pool, resolved.precise},
              {api::kv_geometry(impl.model(), resolved.cache_type),
               most * kv::Geometry::pages_for(resolved.context)},
              resolved.prefill_chunk};
  const int threads = engine.pool->size();
  // One decode step of one sequence reads every weight once, and the cache of its depth.
  const auto weights = static_cast<double>(impl.model().packed_bytes());
  const double kv_per_token =
      static_cast<double>(bench.pages.geometry().page_bytes()) / kernels::kTilePositions;
  Json runs = Json::array();
  const auto repeat = [&](const std::string& test, int64_t batch, double bytes,
                          const auto& once) -> Status {
    CUTAWAY_TRY(once());  // warm-up: scratch, pages, clocks
    std::vector<double> tps;
    for (int i = 0; i < request.repetitions; ++i) {
      CUTAWAY_ASSIGN(const double value, once());
      tps.push_back(value);
    }
    runs.push_back(summarize(test, batch, threads, std::move(tps), bytes));
    return {};
  };
  if (request.prefill > 0) {
    const int64_t chunks = (request.prefill + bench.chunk - 1) / bench.chunk;
    CUTAWAY_TRY(repeat("pp" + std::to_string(request.prefill), 1,
                       weights * static_cast<double>(chunks) / static_cast<double>(request.prefill),
                       [&] { return bench.time_prefill(request.prefill); }));
  }
  for (const int64_t batch : request.batch) {
    if (request.decode == 0) break;
    const std::string at = request.depth > 0 ? "@" + std::to_string(request.depth) : "";
    const double depth = static_cast<double>(std::max<int64_t>(1, request.depth)) +
                         static_cast<double>(request.decode) / 2;
    CUTAWAY_TRY(repeat("tg" + std::to_string(request.decode) + at, batch,
                       weights / static_cast<double>(batch) + depth * kv_per_token,
                       [&] { return bench.time_decode(request.decode, batch, request.depth); }));
  }
  CUTAWAY_OUT(span, "runs", runs.size());
  return Json{{"runs", std::move(runs)}};
}

}  // namespace cutaway
