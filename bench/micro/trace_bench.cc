// What a trace record costs: on the traced thread, and to format on the background one.

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <vector>

#include "trace/digest.h"
#include "trace/line_format.h"
#include "trace/sinks.h"
#include "trace/trace.h"
#include "trace/tracer.h"

namespace cutaway::trace {
namespace {

class Discard : public Sink {
 public:
  void write(const Record& record) override { benchmark::DoNotOptimize(record.time_ns); }
};

[[gnu::noinline]] int op(const TensorView& x, int n) {
  CUTAWAY_SPAN(span, "ops::matmul", "x", x, "n", n);
  benchmark::DoNotOptimize(n);
  CUTAWAY_OUT(span, "y", x);
  return n;
}

// A span is two records.
void span_off(benchmark::State& state) {
  const std::vector<float> data(576);
  const TensorView x{data.data(), {1, 576}};
  for (auto _ : state) op(x, 7);
}
BENCHMARK(span_off);

// One generated token is about 350 spans; its records fit into a ring, so that what is measured is
// the traced thread alone. Flushes between tokens are not timed.
void token_of_350_spans(benchmark::State& state) {
  const std::vector<float> data(576, 0.5F);
  const TensorView x{data.data(), {1, 576}};
  Tracer tracer;
  tracer.add_sink(std::make_shared<Discard>(), static_cast<Level>(state.range(0)));
  const Attach attach(&tracer);
  for (auto _ : state) {
    const At at({0, 0, 5, 17, 3});
    for (int i = 0; i < 350; ++i) op(x, i);
    state.PauseTiming();
    (void)tracer.flush();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * 700);
  state.counters["ns_per_record"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * 700 / 1e9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(token_of_350_spans)
    ->ArgName("level")
    ->Arg(static_cast<int>(Level::kFunctions))
    ->Arg(static_cast<int>(Level::kTensors));

struct Sample {
  Field fields[2];
  Record record;
  Sample() {
    fields[0].key = "y";
    fields[0].kind = FieldKind::kTensor;
    fields[0].tensor.rank = 2;
    fields[0].tensor.dims[0] = 1;
    fields[0].tensor.dims[1] = 576;
    fields[0].tensor.has_digest = false;
    fields[1].key = "n";
    fields[1].kind = FieldKind::kInt;
    fields[1].i = 41;
    record.kind = RecordKind::kExit;
    record.name = "ops::matmul";
    record.duration_ns = 41'234;
    record.wall_us = 1'700'000'000'000'000;
    record.at = {0, 0, 5, 17, 3};
    record.run = "01HF7Y0Q8T3Z0000000000000A";
    record.fields = fields;
  }
};

template <typename Append>
void format(benchmark::State& state, Append&& append) {
  Sample sample;
  LineFormat lines;
  std::string out;
  for (auto _ : state) {
    sample.record.wall_us += 10;
    sample.record.time_ns += 10'000;
    out.clear();
    append(lines, out, sample.record);
    benchmark::DoNotOptimize(out.data());
  }
  state.counters["bytes"] = static_cast<double>(out.size());
}
void format_console(benchmark::State& state) {
  format(state,
         [](LineFormat& f, std::string& out, const Record& r) { f.append_console(out, r, false); });
}
BENCHMARK(format_console);
void format_jsonl(benchmark::State& state) {
  format(state, [](LineFormat& f, std::string& out, const Record& r) { f.append_json(out, r); });
}
BENCHMARK(format_jsonl);

// The whole way into a file, the writer waiting for the background thread wherever it must.
void through_to_a_file(benchmark::State& state) {
  const std::vector<float> data(576, 0.5F);
  const TensorView x{data.data(), {1, 576}};
  Tracer tracer;
  tracer.add_sink(make_jsonl_sink("/dev/null").value(), Level::kFunctions);
  const Attach attach(&tracer);
  for (auto _ : state) {
    for (int i = 0; i < 50'000; ++i) op(x, i);
    (void)tracer.flush();
  }
  state.counters["ns_per_record"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * 100'000 / 1e9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(through_to_a_file)->UseRealTime();

void digest_floats(benchmark::State& state) {
  const std::vector<float> data(static_cast<size_t>(state.range(0)), 0.5F);
  const TensorView x{data.data(), {1, state.range(0)}};
  for (auto _ : state) benchmark::DoNotOptimize(digest(x));
  state.SetBytesProcessed(state.iterations() * state.range(0) * 4);
}
BENCHMARK(digest_floats)->Arg(576)->Arg(1536)->Arg(49152);

}  // namespace
}  // namespace cutaway::trace

BENCHMARK_MAIN();
