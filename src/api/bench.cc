#include <algorithm>
#include <functional>

#include "api/impl.h"
#include "api/limits.h"
#include "base/clock.h"
#include "base/guard.h"

namespace cutaway {
namespace {

using api::ModelImpl;
using inference::SequenceState;
using inference::StepInput;
using inference::WantLogits;

constexpr int64_t kLimitNs = 150'000'000;  // for each limit, before and after the tests

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
  std::function<Status()> go_on;  // kCancelled when the caller wants no more

  Status prefill(SequenceState& sequence, std::span<const int32_t> tokens) {
    for (size_t at = 0; at < tokens.size();) {
      CUTAWAY_TRY(go_on());
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

  // Tokens per second, all sequences together, of n decode steps from `depth` tokens on. The
  // sequences are filled by the first call and cut back by the others.
  Result<double> time_decode(std::vector<std::unique_ptr<SequenceState>>& sequences, int64_t n,
                             int64_t batch, int64_t depth) {
    const std::vector<int32_t> context = filler(depth, model.model().shape().vocab);
    for (const auto& sequence : sequences) sequence->truncate(depth);
    while (static_cast<int64_t>(sequences.size()) < batch) {
      auto sequence = std::make_unique<SequenceState>(pages);
      CUTAWAY_TRY(prefill(*sequence, context));
      sequences.push_back(std::move(sequence));
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

struct Measured {
  std::string test;
  int64_t batch = 1, depth = 0;
  std::vector<double> tps;
  api::TokenCost cost;
};

Json to_json(const Measured& measured, int threads, const api::MachineLimits* limits) {
  std::vector<double> tps = measured.tps;
  std::sort(tps.begin(), tps.end());
  const double median = tps.size() % 2 == 1 ? tps[tps.size() / 2]
                                            : (tps[tps.size() / 2 - 1] + tps[tps.size() / 2]) / 2;
  Json out = {{"test", measured.test},
              {"batch", measured.batch},
              {"depth", measured.depth},
              {"threads", threads},
              {"tps", {{"median", median}, {"min", tps.front()}, {"max", tps.back()}}},
              {"bytes_per_token", measured.cost.bytes},
              {"achieved_gbps", median * measured.cost.bytes / 1e9},
              {"ops_per_token", measured.cost.ops()},
              {"achieved_gops", median * measured.cost.ops() / 1e9}};
  if (limits != nullptr) {
    out["limit_gbps"] = limits->read.gbps;
    out["limit_gops"] = measured.cost.limit_gops(*limits);
  }
  return out;
}

// Positions that a test of `decode` tokens begins with: a decode step needs a token to go on from.
int64_t filled(int64_t depth) { return std::max<int64_t>(1, depth); }

int64_t most(const std::vector<int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// Positions of one sequence that the longest test takes.
int64_t longest(const BenchRequest& request) {
  return std::max(request.prefill,
                  request.decode > 0 ? filled(most(request.depth)) + request.decode : 0);
}

Status check(const BenchRequest& request, int64_t context) {
  const auto wrong = [](const char* field, int64_t value, const std::string& expected) {
    return Error{ErrorCode::kInvalidArgument,
                 std::string(field) + " is " + std::to_string(value) + ", must be " + expected,
                 field};
  };
  constexpr int64_t kMost = int64_t{1} << 31;
  if (request.prefill < 0 || request.prefill > kMost) {
    return wrong("prefill", request.prefill, "0 (leave out) to 2147483648");
  }
  if (request.decode < 0 || request.decode > kMost) {
    return wrong("decode", request.decode, "0 (leave out) to 2147483648");
  }
  for (const int64_t depth : request.depth) {
    if (depth < 0 || depth > kMost) return wrong("depth", depth, "0 to 2147483648");
  }
  if (request.repetitions < 1) return wrong("repetitions", request.repetitions, "1 or more");
  for (const int64_t batch : request.batch) {
    if (batch < 1 || batch > 4096) return wrong("batch", batch, "1 to 4096");
  }
  if (const int64_t need = longest(request); need > context) {
    return Error{ErrorCode::kTooLarge,
                 "the tests need " + std::to_string(need) + " tokens; the context holds " +
                     std::to_string(context),
                 "context"};
  }
  return {};
}

// Runs the tests one after another into `done`.
Status run_tests(Bench& bench, const BenchRequest& request, const api::CostModel& costs,
                 std::vector<Measured>& done) {
  const auto repeat = [&](Measured test, const auto& once) -> Status {
    const auto total = static_cast<uint64_t>(request.repetitions);
    uint64_t repetition = 0;
    bench.go_on = [&]() -> Status {
      if (!request.progress || request.progress({test.test, repetition, total})) return {};
      return Error{ErrorCode::kCancelled, "the bench was cancelled"};
    };
    CUTAWAY_TRY(bench.go_on());
    CUTAWAY_TRY(once());  // warm-up: scratch, pages, clocks
    for (; repetition < total; ++repetition) {
      CUTAWAY_TRY(bench.go_on());
      CUTAWAY_ASSIGN(const double value, once());
      test.tps.push_back(value);
    }
    done.push_back(std::move(test));
    return {};
  };
  if (request.prefill > 0) {
    CUTAWAY_TRY(repeat({"pp" + std::to_string(request.prefill),
                        1,
                        0,
                        {},
                        costs.prefill(request.prefill, bench.chunk)},
                       [&] { return bench.time_prefill(request.prefill); }));
  }
  if (request.decode == 0) return {};
  for (const int64_t depth : request.depth) {
    for (const int64_t batch : request.batch) {
      const std::string at = depth > 0 ? "@" + std::to_string(depth) : "";
      std::vector<std::unique_ptr<SequenceState>> sequences;
      CUTAWAY_TRY(repeat(
          {"tg" + std::to_string(request.decode) + at,
           batch,
           depth,
           {},
           costs.decode(request.decode, batch, filled(depth))},
          [&] { return bench.time_decode(sequences, request.decode, batch, filled(depth)); }));
    }
  }
  return {};
}

}  // namespace

Result<Json> bench(const Model& model, const BenchRequest& request, const SessionOptions& options) {
  return guarded("the measurement", [&]() -> Result<Json> {
    const auto& impl = static_cast<const ModelImpl&>(model);
    Engine::Impl& engine = impl.engine();
    const trace::Attach attach(engine.tracer.get());
    CUTAWAY_SPAN(span, "api::bench", "prefill", request.prefill, "decode", request.decode, "depths",
                 request.depth.size(), "repetitions", request.repetitions);
    CUTAWAY_ASSIGN(const api::ResolvedSession resolved,
                   api::resolve_session(options, impl.model(), engine));
    CUTAWAY_TRY(check(request, resolved.context));
    const kv::Geometry geometry = api::kv_geometry(impl.model(), resolved.cache_type);
    const int64_t batch = std::max<int64_t>(1, request.decode > 0 ? most(request.batch) : 1);
    const int64_t pages = batch * kv::Geometry::pages_for(longest(request));
    CUTAWAY_TRY(api::check_memory(geometry, pages,
                                  "sequences: " + std::to_string(batch) + " of up to " +
                                      std::to_string(longest(request)) + " tokens",
                                  "batch"));
    const std::scoped_lock lock(engine.working);
    Bench bench{impl,
                {impl.model(), *engine.selection.table, *engine.pool, resolved.precise},
                {geometry, pages},
                resolved.prefill_chunk,
                {}};
    const api::CostModel costs(
        impl.model().transformer().products(), *engine.selection.table, resolved.precise,
        static_cast<double>(geometry.page_bytes()) / kernels::kTilePositions);
    api::MachineLimits limits;
    std::vector<std::string> warnings = resolved.warnings;
    bool with_limits = request.limits;
    const auto measure = [&] {
      if (!with_limits) return;
      auto measured = api::measure_limits(*engine.selection.table, *engine.pool, kLimitNs);
      if (measured.ok()) {
        limits.keep_better(*measured);
      } else {  // the tests are worth having without
        with_limits = false;
        warnings.push_back("the machine's limits are left out: " + measured.error().message);
      }
    };
    measure();
    std::vector<Measured> done;
    const Status status = run_tests(bench, request, costs, done);
    const bool cancelled = !status.ok() && status.error().code == ErrorCode::kCancelled;
    if (!status.ok() && !cancelled) return status.error();
    if (!cancelled) measure();
    Json runs = Json::array();
    for (const Measured& measured : done) {
      runs.push_back(to_json(measured, engine.pool->size(), with_limits ? &limits : nullptr));
    }
    CUTAWAY_OUT(span, "runs", runs.size(), "cancelled", cancelled);
    Json out = {{"runs", std::move(runs)},
                {"session", api::session_json(resolved, engine)},
                {"warnings", warnings},
                {"cancelled", cancelled}};
    if (with_limits) out["limits"] = limits.to_json();
    return out;
  });
}

}  // namespace cutaway
