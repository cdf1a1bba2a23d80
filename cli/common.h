// What several subcommands share: the flags that choose a model, an engine and a trace, and where
// text comes from.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/args.h"
#include "cutaway/engine.h"
#include "cutaway/intervention.h"
#include "cutaway/model_store.h"

namespace cutaway::cli {

inline constexpr const char* kDefaultModel = "smollm2-135m";

// --alias NAME=MODEL, wherever a model is named. The flags' aliases go before CUTAWAY_ALIASES.
struct AliasArgs {
  std::vector<std::string> aliases;
  void add_to(Args& args);
  // Error kInvalidArgument when one is not NAME=MODEL.
  Status apply() const;
};

struct ModelArgs {
  std::optional<std::string> model;
  AliasArgs aliases;
  void add_to(Args& args);
  std::string name() const { return model.value_or(kDefaultModel); }
};

// -t, and CUTAWAY_FORCE_ISA.
struct EngineArgs {
  std::optional<int64_t> threads;
  void add_to(Args& args);
  Result<std::shared_ptr<Engine>> create() const;
};

// -c, --cache-type, --prefill-chunk, --precise.
struct SessionArgs {
  std::optional<int64_t> context, prefill_chunk;
  std::optional<std::string> cache_type;
  bool precise = false;
  void add_to(Args& args);
  void add_computation_to(Args& args);  // without -c, whose help the caller writes
  Result<SessionOptions> options() const;
};

// What is kept of the taps: --layers, --heads, --positions, --steps, --attention-top.
struct TapArgs {
  std::optional<std::string> layers, heads, positions, steps;
  std::optional<int64_t> attention_top;
  void add_to(Args& args, bool has_steps);
  TapWindow window() const;
  // The first flag that is there and has no effect without `needs`, as an error; or nothing.
  Status check_unused(const std::string& needs) const;
};

// What --intervene is: a file, or the JSON itself, which begins with {.
Result<Interventions> interventions_of(const std::string& file_or_json);

// --trace LEVEL (stderr), --trace-out FILE or a collector.
struct TraceArgs {
  std::optional<std::string> level, out;
  void add_to(Args& args);
  // kInvalidArgument: flags that contradict each other, or an unknown level. Touches no file.
  Status check() const;
  Status attach(Engine& engine) const;
  // Whether trace lines appear on the terminal: whatever else is written there would break them.
  bool on_terminal() const;
};

// An engine, and a model in it (with a progress bar when loading takes long). `status` is set when
// something failed: it has been reported.
struct Loaded {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Model> model;
  std::optional<int> status;
};
Loaded load(const EngineArgs& engine, const ModelArgs& model, const TraceArgs* trace);
// The same into an engine that is there.
Result<std::shared_ptr<Model>> load_model(Engine& engine, const std::string& name,
                                          bool show_progress = true);

// An engine for what a recording says (read_recording's): its kernel table where this machine has
// it, unless CUTAWAY_FORCE_ISA names another. `threads`: 0 is what the machine can really use.
Result<std::shared_ptr<Engine>> engine_of_recording(int64_t threads, const Json& recording);

// What `list --json` and `pull --json` say of a model.
Json installed_json(const InstalledModel& model);

// Waits for the trace, a collector's too; warns of what it could not deliver. Returns `status`, or
// kFailed when a file or the console failed.
int finish_trace(Engine& engine, int status);
// The same, and for stdout; returns `status`, or kFailed when one of them failed.
int finish(Engine& engine, int status);

// Where a text comes from: the argument, -f FILE, or stdin ("-", or no argument and no terminal).
struct TextArgs {
  std::string name;  // "PROMPT" or "TEXT", for messages
  std::optional<std::string> text, file;
  void add_to(Args& args, const std::string& positional, const std::string& help);
  // Nothing when there is none: no argument, and stdin is a terminal. Errors: kInvalidArgument
  // (argument and file), kNotFound, kIo, kCancelled.
  Result<std::optional<std::string>> read() const;
};

}  // namespace cutaway::cli
