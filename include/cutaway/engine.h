// An engine: threads, kernels, tracing. Models are loaded into it.
#pragma once

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "cutaway/model.h"
#include "cutaway/options.h"

namespace cutaway {

// A live subscription to an engine's trace (Engine::watch). Destroyed, it is over. One reader at a
// time; it may outlive the engine.
class TraceStream {
 public:
  virtual ~TraceStream() = default;

  struct Batch {
    // One JSON object each (schema/trace.schema.json), without a newline. Where this reader was too
    // slow, the event "trace.dropped" says how many `records` are missing.
    std::vector<std::shared_ptr<const std::string>> lines;
    bool ended = false;  // the engine is gone: nothing comes after these
  };
  // What there is, at most `max_lines`; waits for up to `timeout` when there is nothing yet.
  virtual Batch next(size_t max_lines, std::chrono::milliseconds timeout) = 0;
};

struct TraceStreamOptions {
  std::string run;  // the id of the one run to watch; empty: everything
  TraceLevel level = TraceLevel::kFunctions;
  size_t max_lines = 8192;     // that wait for the reader; more are dropped and counted
  size_t max_bytes = 4 << 20;  // of them
};

class Engine {
 public:
  // Errors: threads out of range; an ISA that is not there (kUnsupported) or unknown.
  static Result<std::shared_ptr<Engine>> create(const EngineOptions& options);
  ~Engine();

  // `model`: a path or an installed name (model_store.h). Errors name the file, the field and the
  // value. `progress` may be empty.
  Result<std::shared_ptr<Model>> load(const std::string& model, const ProgressFn& progress);

  // Tracing, from now on. Several may be attached; the level in force is the highest.
  // `stream` is not closed. Colour only where the caller says so.
  void trace_to_stream(std::FILE* stream, TraceLevel level, bool colour);
  // A name that ends in .perfetto.json gets Chrome's JSON trace format, which Perfetto's UI opens;
  // one that ends in .otlp.jsonl OpenTelemetry's OTLP in JSON; any other gets JSONL
  // (schema/trace.schema.json). http://HOST:PORT, https://…, otlp:URL, or "otlp" alone (the
  // environment's OTEL_EXPORTER_OTLP_ENDPOINT) is a collector, which gets OTLP over HTTP.
  Status trace_to_file(const std::string& path, TraceLevel level);
  // A live stream, from now on: a run that is under way joins it with its next token. Whoever reads
  // it slowly loses records, and delays nothing.
  std::unique_ptr<TraceStream> watch(const TraceStreamOptions& options);
  // Waits until every record is written; the first error of a sink, if any.
  Status flush_trace();
  // The same at the end of a program: waits, within its timeout, until a collector has everything
  // too.
  Status finish_trace();
  // What a collector did not get and other things that fail no run, a sentence each.
  std::vector<std::string> trace_warnings() const;

  // {"version","cpu":{…},"threads","kernels":{"chosen","choices":[{"name","reason"}]}}
  Json machine_info() const;

  struct Impl;

 private:
  explicit Engine(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// "0.1.0"
const char* version();

}  // namespace cutaway
