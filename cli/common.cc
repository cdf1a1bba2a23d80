#include "cli/common.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/terminal.h"

namespace cutaway::cli {
namespace {

constexpr int kLoadBarDelayMs = 300;
constexpr int64_t kMaxThreads = 1024;

Result<std::string> read_descriptor(int fd, const std::string& name) {
  std::string text;
  for (char buffer[1 << 16];;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n == 0) return text;
    if (n > 0) {
      text.append(buffer, static_cast<size_t>(n));
    } else if (errno == EINTR && interrupted()) {
      return Error{ErrorCode::kCancelled, fmt::format("reading {} was cancelled", name)};
    } else if (errno != EINTR) {
      return Error{ErrorCode::kIo, fmt::format("cannot read {}: {}", name, std::strerror(errno))};
    }
  }
}

Result<std::string> read_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return Error{errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                 fmt::format("cannot read '{}': {}", path, std::strerror(errno)), "file"};
  }
  Result<std::string> text = read_descriptor(fd, fmt::format("'{}'", path));
  ::close(fd);
  return text;
}

}  // namespace

void AliasArgs::add_to(Args& args) {
  args.texts("--alias", aliases, "NAME=MODEL",
             "Lets NAME stand for MODEL (may be repeated; CUTAWAY_ALIASES=NAME=MODEL,… does too)");
}

Status AliasArgs::apply() const {
  std::string all;
  for (const std::string& alias : aliases) {
    const size_t equals = alias.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == alias.size() ||
        alias.find(',') != std::string::npos) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("--alias: '{}' is not accepted; it takes NAME=MODEL", alias),
                   "alias"};
    }
    all += alias + ",";
  }
  if (all.empty()) return {};
  if (const char* given = std::getenv("CUTAWAY_ALIASES"); given != nullptr) all += given;
  ::setenv("CUTAWAY_ALIASES", all.c_str(), 1);
  return {};
}

void ModelArgs::add_to(Args& args) {
  args.text(
      "-m,--model", model, "MODEL",
      fmt::format("A .gguf file, an installed name or an alias (default: {})", kDefaultModel));
  aliases.add_to(args);
}

void EngineArgs::add_to(Args& args) {
  args.integer("-t,--threads", threads, 1, kMaxThreads, "N",
               "Threads (default: what the machine can really use)");
}

Result<std::shared_ptr<Engine>> EngineArgs::create() const {
  EngineOptions options;
  options.threads = static_cast<int>(threads.value_or(0));
  if (const char* isa = std::getenv("CUTAWAY_FORCE_ISA"); isa != nullptr) options.force_isa = isa;
  Result<std::shared_ptr<Engine>> engine = Engine::create(options);
  if (engine.ok()) return engine;
  Error error = engine.error();
  // An ISA that this machine does not have is a wrong use of the variable.
  if (error.code == ErrorCode::kUnsupported) error.code = ErrorCode::kInvalidArgument;
  return error;
}

Result<std::shared_ptr<Engine>> engine_of_recording(int64_t threads, const Json& recording) {
  EngineOptions options;
  options.threads = static_cast<int>(threads);
  if (const char* forced = std::getenv("CUTAWAY_FORCE_ISA"); forced != nullptr && *forced != '\0') {
    options.force_isa = forced;
    return Engine::create(options);
  }
  options.force_isa = recording.value("session", Json::object()).value("kernels", std::string());
  auto engine = Engine::create(options);
  if (engine.ok()) return engine;
  options.force_isa.clear();
  return Engine::create(options);
}

void SessionArgs::add_to(Args& args) {
  args.integer("-c,--context", context, 1, std::numeric_limits<int64_t>::max(), "N",
               "Tokens that prompt and answer may take (default: what the model was trained for)");
  add_computation_to(args);
}

void SessionArgs::add_computation_to(Args& args) {
  args.text("--cache-type", cache_type, "f32|f16|q8|q4",
            "Type of the KV cache (default: f16; f32 with --precise)");
  args.integer("--prefill-chunk", prefill_chunk, 1, std::numeric_limits<int64_t>::max(), "N",
               "Prompt tokens per forward pass (default: 512); changes speed, never the answer");
  args.flag("--precise", precise,
            "Multiply unquantised activations with dequantised weights: slower, and what the "
            "reference implementation computes");
}

Result<SessionOptions> SessionArgs::options() const {
  SessionOptions options;
  options.context = context.value_or(options.context);
  options.prefill_chunk = prefill_chunk.value_or(options.prefill_chunk);
  options.precise = precise;
  if (cache_type) {
    CUTAWAY_ASSIGN(options.cache_type, parse_cache_type(*cache_type));
  }
  return options;
}

void TapArgs::add_to(Args& args, bool has_steps) {
  args.text("--layers", layers, "0,3-5", "Of taps that a pattern names, these layers");
  args.text("--heads", heads, "0,2",
            "These query heads, and the key and value heads that they read");
  args.text("--positions", positions, "0:16",
            "These positions, the end excluded; negative ones count from the end (-4:)");
  if (has_steps) {
    args.text("--steps", steps, "0:4",
              "These steps of the answer: step s is the position that chose token s");
  }
  args.integer(
      "--attention-top", attention_top, 1, 16, "K",
      "Keep of each attention row the K likeliest keys, the mass of the rest, the entropy");
}

TapWindow TapArgs::window() const {
  return {layers.value_or(""), heads.value_or(""), positions.value_or(""), steps.value_or("")};
}

Status TapArgs::check_unused(const std::string& needs) const {
  const std::pair<const char*, bool> flags[] = {{"layers", layers.has_value()},
                                                {"heads", heads.has_value()},
                                                {"positions", positions.has_value()},
                                                {"steps", steps.has_value()},
                                                {"attention-top", attention_top.has_value()}};
  for (const auto& [name, there] : flags) {
    if (!there) continue;
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--{} has no effect without {}; add it", name, needs), name};
  }
  return {};
}

Result<Interventions> interventions_of(const std::string& file_or_json) {
  const size_t first = file_or_json.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || file_or_json[first] != '{') {
    return read_interventions(file_or_json);
  }
  auto out = parse_interventions(file_or_json);
  if (out.ok()) return out;
  return Error{out.error().code,
               out.error().message + " (a file whose name begins with { is written ./{…)",
               out.error().field};
}

void TraceArgs::add_to(Args& args) {
  args.text("--trace", level, "LEVEL",
            "Show every step on stderr: off, phases, functions or tensors");
  args.text(
      "--trace-out", out, "FILE",
      "Write the trace to FILE: NAME.perfetto.json opens in Perfetto's UI, NAME.otlp.jsonl is "
      "OpenTelemetry's OTLP, any other name gets one JSON object a line (level: functions, or "
      "--trace's). http://HOST:4318 or otlp (where OTEL_EXPORTER_OTLP_ENDPOINT says) is a "
      "collector");
}

Status TraceArgs::check() const {
  TraceLevel parsed = TraceLevel::kFunctions;
  if (level) {
    CUTAWAY_ASSIGN(parsed, parse_trace_level(*level));
  }
  if (out && parsed == TraceLevel::kOff) {
    return Error{ErrorCode::kInvalidArgument,
                 "--trace off and --trace-out contradict each other; leave one out", "trace"};
  }
  return {};
}

Status TraceArgs::attach(Engine& engine) const {
  CUTAWAY_TRY(check());
  TraceLevel file_level = TraceLevel::kFunctions;
  if (level) {
    CUTAWAY_ASSIGN(const TraceLevel parsed, parse_trace_level(*level));
    file_level = parsed;
    if (parsed != TraceLevel::kOff) {
      engine.trace_to_stream(stderr, parsed, shows_colour(STDERR_FILENO));
    }
  }
  if (out) CUTAWAY_TRY(engine.trace_to_file(*out, file_level));
  return {};
}

bool TraceArgs::on_terminal() const {
  return level && *level != "off" && is_terminal(STDERR_FILENO);
}

Result<std::shared_ptr<Model>> load_model(Engine& engine, const std::string& name,
                                          bool show_progress) {
  ProgressBar bar(kLoadBarDelayMs, show_progress);
  return engine.load(name, bar.callback());
}

Loaded load(const EngineArgs& engine_args, const ModelArgs& model_args, const TraceArgs* trace) {
  Loaded loaded;
  const auto fail = [&](const Error& error) {
    loaded.status = report(error);
    return loaded;
  };
  if (const Status s = model_args.aliases.apply(); !s.ok()) return fail(s.error());
  if (trace != nullptr) {
    if (const Status s = trace->check(); !s.ok()) return fail(s.error());
  }
  auto engine = engine_args.create();
  if (!engine.ok()) return fail(engine.error());
  loaded.engine = *engine;
  if (trace != nullptr) {
    if (const Status s = trace->attach(*loaded.engine); !s.ok()) return fail(s.error());
  }
  auto model =
      load_model(*loaded.engine, model_args.name(), trace == nullptr || !trace->on_terminal());
  if (!model.ok()) {
    // The trace of what failed belongs before the message.
    [[maybe_unused]] const int ended = finish_trace(*loaded.engine, kFailed);
    return fail(model.error());
  }
  loaded.model = *model;
  return loaded;
}

Json installed_json(const InstalledModel& model) {
  Json out = {{"name", model.name}, {"path", model.path}, {"bytes", model.bytes}};
  if (!model.sha256.empty()) out["sha256"] = model.sha256;
  if (!model.source.empty()) out["source"] = model.source;
  if (model.files.size() > 1) out["files"] = model.files;
  return out;
}

int finish_trace(Engine& engine, int status) {
  const Status finished = engine.finish_trace();
  for (const std::string& warning : engine.trace_warnings()) print_warning(warning);
  if (finished.ok()) return status;
  report(finished.error());
  return status == kDone ? kFailed : status;
}

int finish(Engine& engine, int status) { return end_output(finish_trace(engine, status)); }

void TextArgs::add_to(Args& args, const std::string& positional, const std::string& help) {
  name = positional;
  args.positional(positional, text, help);
  args.text("-f,--file", file, "FILE", fmt::format("Read {} from FILE", positional));
}

Result<std::optional<std::string>> TextArgs::read() const {
  if (text && file) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} and --file are both there; one is needed", name), "file"};
  }
  const bool from_stdin = text ? *text == "-" : file ? *file == "-" : !is_terminal(STDIN_FILENO);
  if (from_stdin) {
    CUTAWAY_ASSIGN(std::string read, read_descriptor(STDIN_FILENO, "stdin"));
    return std::optional<std::string>(std::move(read));
  }
  if (file) {
    CUTAWAY_ASSIGN(std::string read, read_file(*file));
    return std::optional<std::string>(std::move(read));
  }
  return text;
}

}  // namespace cutaway::cli
