// cutaway bench: how fast this machine prefills and decodes with a model, against what it can do.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <limits>
#include <set>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/terminal.h"

namespace cutaway::cli {
namespace {

constexpr int64_t kMaxCount = 1 << 20;
constexpr int64_t kMaxBatch = 4096;
constexpr int64_t kStartPrompt = 16;  // tokens

// A list in which each value stands once: it is a test.
Result<std::vector<int64_t>> parse_distinct(const std::string& field, const std::string& text,
                                            int64_t min, int64_t max) {
  CUTAWAY_ASSIGN(std::vector<int64_t> values, parse_integers(field, text, min, max));
  std::set<int64_t> seen;
  for (const int64_t value : values) {
    if (!seen.insert(value).second) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("{}: {} is in '{}' more than once", field, value, text), field};
    }
  }
  return values;
}

struct BenchArgs {
  ModelArgs model;
  EngineArgs engine;
  SessionArgs session;
  TraceArgs trace;
  std::optional<int64_t> prefill, decode, repetitions;
  std::optional<std::string> batch, depth;
  bool json = false, no_limits = false, start = false;

  void add_to(Args& args) {
    args.integer("-p,--prefill", prefill, 0, kMaxCount, "N",
                 "Tokens of the prefill test (default: 512; 0 leaves it out)");
    args.integer("-n,--decode", decode, 0, kMaxCount, "N",
                 "Tokens of the decode test (default: 128; 0 leaves it out)");
    args.text("-b,--batch", batch, "N,N,…", "Sequences at once (default: 1)");
    args.text("--depth", depth, "N,N,…", "Tokens in the cache before decode is timed (default: 0)");
    args.integer("--reps", repetitions, 1, 1000, "N", "Repetitions of each test (default: 5)");
    args.flag("--no-limits", no_limits,
              "Do not measure how fast the machine reads and multiplies (a second)");
    args.flag("--start", start,
              "Instead: the time from the beginning of the load to the first token after 16");
    args.flag("--json", json, "One JSON document on stdout");
    args.group("Model and computation");
    model.add_to(args);
    engine.add_to(args);
    session.add_to(args);
    args.group("Trace");
    trace.add_to(args);
    args.footer(
        "Each test runs once to warm up, then --reps times; the median counts. GB/s and GOPS are "
        "what a token reads and multiplies, times tokens per second; limits are measured in the "
        "same run.\nCtrl-C ends it between repetitions: what was measured is shown, exit status "
        "130.");
  }

  Result<BenchRequest> request() const {
    const auto wrong = [](const char* field, const std::string& message) {
      return Error{ErrorCode::kInvalidArgument, message, field};
    };
    BenchRequest out;
    out.prefill = prefill.value_or(out.prefill);
    out.decode = decode.value_or(out.decode);
    out.repetitions = static_cast<int>(repetitions.value_or(out.repetitions));
    out.limits = !no_limits;
    if (batch) {
      CUTAWAY_ASSIGN(out.batch, parse_distinct("--batch", *batch, 1, kMaxBatch));
    }
    if (depth) {
      CUTAWAY_ASSIGN(out.depth, parse_distinct("--depth", *depth, 0, kMaxCount));
    }
    if (start && (prefill || decode || batch || depth || repetitions || no_limits)) {
      return wrong("start", "--start stands alone: it has no tests, depths, repetitions or limits");
    }
    if (out.prefill == 0 && out.decode == 0) {
      return wrong("prefill", "-p 0 and -n 0 leave no test");
    }
    return out;
  }
};

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.0f} %", 100 * part / whole) : "";
}

// One line of the table. Without limits the columns that say how much of them is reached are left
// out.
std::string table_line(const std::array<std::string, 10>& cells, bool limits) {
  constexpr std::array<int, 10> kWidths = {-14, 5, 7, 9, 19, 12, 7, 8, 7, 8};  // negative: left
  constexpr std::array<bool, 10> kOfLimits = {0, 0, 0, 0, 0, 0, 0, 1, 0, 1};
  std::string out;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (kOfLimits[i] && !limits) continue;
    if (i > 0) out += ' ';
    out += kWidths[i] < 0 ? fmt::format("{:<{}}", cells[i], -kWidths[i])
                          : fmt::format("{:>{}}", cells[i], kWidths[i]);
  }
  return out + "\n";
}

std::string table(const Json& runs) {
  const bool limits = runs.at(0).contains("limit_gbps");
  const auto number = [](double value) { return fmt::format("{:.1f}", value); };
  std::string out = table_line({"test", "batch", "threads", "tok/s", "min … max", "bytes/token",
                                "GB/s", "of limit", "GOPS", "of limit"},
                               limits);
  for (const Json& run : runs) {
    const Json& tps = run.at("tps");
    const double gbps = run.at("achieved_gbps").get<double>();
    const double gops = run.at("achieved_gops").get<double>();
    out += table_line(
        {run.at("test").get<std::string>(), std::to_string(run.at("batch").get<int64_t>()),
         std::to_string(run.at("threads").get<int64_t>()), number(tps.at("median").get<double>()),
         number(tps.at("min").get<double>()) + " … " + number(tps.at("max").get<double>()),
         human_bytes(run.at("bytes_per_token").get<double>()), number(gbps),
         percent(gbps, run.value("limit_gbps", 0.0)), number(gops),
         percent(gops, run.value("limit_gops", 0.0))},
        limits);
  }
  return out;
}

// What the percentages are of.
std::string limits_line(const Json& limits, const Json& machine) {
  return fmt::format(
      "Limits measured in this run with {} thread{} ({} kernels): reading memory {:.1f} GB/s (a "
      "buffer of {}; what stays in the cache of {} is faster), int8 {:.0f} GOPS ({}), f32 {:.0f} "
      "GOPS ({}); two operations per multiply-add.\n",
      machine.at("threads").get<int>(), machine.at("threads").get<int>() == 1 ? "" : "s",
      machine.at("kernels").at("chosen").get<std::string>(), limits.at("read_gbps").get<double>(),
      human_bytes(limits.at("read_buffer_bytes").get<double>()),
      human_bytes(machine.at("cpu").at("l3_bytes").get<double>()),
      limits.at("int8_gops").get<double>(), limits.at("int8_instructions").get<std::string>(),
      limits.at("f32_gops").get<double>(), limits.at("f32_instructions").get<std::string>());
}

// Says on a terminal which repetition runs; false after Ctrl-C.
class BenchProgress {
 public:
  explicit BenchProgress(bool shown) : shown_(shown && is_terminal(STDERR_FILENO)) {}
  ~BenchProgress() { write(""); }
  bool operator()(const Progress& progress) {
    write(fmt::format("{}: {} of {}", progress.what, progress.done, progress.total));
    return !interrupted();
  }

 private:
  void write(const std::string& line) {
    if (!shown_ || line == last_) return;
    const std::string text = "\r\033[K" + line;
    [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
    last_ = line;
  }

  bool shown_;
  std::string last_;
};

// From nothing to the first token, in this process. The file is in the page cache after the first
// time that it is read.
int start_command(const BenchArgs& args, const SessionOptions& options) {
  const int64_t begin = now_ns();
  Loaded loaded = load(args.engine, args.model, &args.trace);
  if (loaded.status) return *loaded.status;
  const int64_t ready = now_ns();
  auto session = loaded.model->start(options);
  if (!session.ok()) return finish(*loaded.engine, report(session.error()));
  GenerateRequest request;
  request.tokens.emplace();
  for (int32_t id = 0; id < kStartPrompt; ++id) request.tokens->push_back(id);
  request.max_tokens = 1;
  request.logprobs = false;
  request.sampling.temperature = 0;
  auto generation = (*session)->generate(request, {});
  const int64_t end = now_ns();
  session->reset();
  if (!generation.ok()) return finish(*loaded.engine, report(generation.error()));
  const auto ms = [](int64_t ns) { return static_cast<double>(ns) / 1e6; };
  const Json start = {{"load_ms", ms(ready - begin)},
                      {"first_token_ms", ms(end - ready)},
                      {"total_ms", ms(end - begin)},
                      {"prompt_tokens", kStartPrompt},
                      {"peak_rss_mb", generation->timings.peak_rss_mb}};
  for (const std::string& warning : generation->warnings) print_warning(warning);
  if (args.json) {
    write_json({{"machine", loaded.engine->machine_info()}, {"start", start}});
  } else {
    write_out(fmt::format(
        "loaded after {:.0f} ms, first token {:.0f} ms later: {:.0f} ms in all; "
        "peak memory {:.0f} MB\n",
        ms(ready - begin), ms(end - ready), ms(end - begin), generation->timings.peak_rss_mb));
  }
  return finish(*loaded.engine, kDone);
}

}  // namespace

int bench_command(int argc, char** argv) {
  Args args("cutaway bench",
            "Measures prefill and decode speed, and what the machine can do at most.");
  BenchArgs bench_args;
  bench_args.add_to(args);
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  auto request = bench_args.request();
  if (!request.ok()) return args.wrong_usage(request.error().message);
  auto options = bench_args.session.options();
  if (!options.ok()) return args.wrong_usage(options.error().message);
  if (bench_args.start) return start_command(bench_args, *options);
  Loaded loaded = load(bench_args.engine, bench_args.model, &bench_args.trace);
  if (loaded.status) return *loaded.status;
  std::optional<Result<Json>> result;
  {
    BenchProgress progress(!bench_args.trace.on_terminal());
    request->progress = [&progress](const Progress& at) { return progress(at); };
    result = bench(*loaded.model, *request, *options);
  }
  if (!result->ok()) return finish(*loaded.engine, report(result->error()));
  const Json& measured = **result;
  for (const Json& warning : measured.at("warnings")) print_warning(warning.get<std::string>());
  const Json machine = loaded.engine->machine_info();
  const bool cancelled = measured.at("cancelled").get<bool>();
  if (bench_args.json) {
    Json model = loaded.model->info(false);
    model.erase("metadata");
    model.erase("tensors");
    Json out = {{"machine", machine}, {"model", std::move(model)}};
    out.update(measured);
    write_json(out);
  } else if (!measured.at("runs").empty()) {
    write_out(table(measured.at("runs")));
    if (measured.contains("limits")) write_out(limits_line(measured.at("limits"), machine));
  }
  return finish(*loaded.engine, cancelled ? kInterrupted : kDone);
}

}  // namespace cutaway::cli
