// cutaway bench: how fast this machine prefills and decodes with a model.
#include <fmt/format.h>

#include <limits>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/output.h"
#include "cli/terminal.h"

namespace cutaway::cli {
namespace {

constexpr int64_t kMaxCount = 1 << 20;

struct BenchArgs {
  ModelArgs model;
  EngineArgs engine;
  SessionArgs session;
  TraceArgs trace;
  std::optional<int64_t> prefill, decode, depth, repetitions;
  std::optional<std::string> batch;
  bool json = false;

  void add_to(Args& args) {
    args.integer("-p,--prefill", prefill, 0, kMaxCount, "N",
                 "Tokens of the prefill test (default: 512; 0 leaves it out)");
    args.integer("-n,--decode", decode, 0, kMaxCount, "N",
                 "Tokens of the decode test (default: 128; 0 leaves it out)");
    args.text("-b,--batch", batch, "N,N,…", "Sequences at once (default: 1)");
    args.integer("--depth", depth, 0, kMaxCount, "N",
                 "Tokens in the cache before decode is timed (default: 0)");
    args.integer("--reps", repetitions, 1, 1000, "N", "Repetitions of each test (default: 5)");
    args.flag("--json", json, "One JSON document on stdout");
    args.group("Model and computation");
    model.add_to(args);
    engine.add_to(args);
    session.add_to(args);
    args.group("Trace");
    trace.add_to(args);
  }

  Result<BenchRequest> request() const {
    BenchRequest out;
    out.prefill = prefill.value_or(out.prefill);
    out.decode = decode.value_or(out.decode);
    out.depth = depth.value_or(out.depth);
    out.repetitions = static_cast<int>(repetitions.value_or(out.repetitions));
    if (batch) {
      CUTAWAY_ASSIGN(out.batch, parse_integers("--batch", *batch, 1, kMaxCount));
    }
    if (out.prefill == 0 && out.decode == 0) {
      return Error{ErrorCode::kInvalidArgument, "-p 0 and -n 0 leave no test", "prefill"};
    }
    return out;
  }
};

std::string table(const Json& runs) {
  std::string out = fmt::format("{:<14} {:>6} {:>8} {:>10} {:>17} {:>12} {:>8}\n", "test", "batch",
                                "threads", "tok/s", "min … max", "bytes/token", "GB/s");
  for (const Json& run : runs) {
    const Json& tps = run.at("tps");
    out += fmt::format(
        "{:<14} {:>6} {:>8} {:>10.1f} {:>17} {:>12} {:>8.1f}\n", run.at("test").get<std::string>(),
        run.at("batch").get<int64_t>(), run.at("threads").get<int64_t>(),
        tps.at("median").get<double>(),
        fmt::format("{:.1f} … {:.1f}", tps.at("min").get<double>(), tps.at("max").get<double>()),
        human_bytes(run.value("bytes_per_token", 0.0)), run.value("achieved_gbps", 0.0));
  }
  return out;
}

}  // namespace

int bench_command(int argc, char** argv) {
  Args args("cutaway bench", "Measures prefill and decode speed.");
  BenchArgs bench_args;
  bench_args.add_to(args);
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  auto request = bench_args.request();
  if (!request.ok()) return args.wrong_usage(request.error().message);
  auto options = bench_args.session.options();
  if (!options.ok()) return args.wrong_usage(options.error().message);
  Loaded loaded = load(bench_args.engine, bench_args.model, &bench_args.trace);
  if (loaded.status) return *loaded.status;
  auto result = bench(*loaded.model, *request, *options);
  if (!result.ok()) return finish(*loaded.engine, report(result.error()));
  if (bench_args.json) {
    Json model = loaded.model->info(false);
    model.erase("metadata");
    model.erase("tensors");
    write_json({{"machine", loaded.engine->machine_info()},
                {"model", std::move(model)},
                {"runs", result->at("runs")}});
  } else {
    write_out(table(result->at("runs")));
  }
  return finish(*loaded.engine, kDone);
}

}  // namespace cutaway::cli
