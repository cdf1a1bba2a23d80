// An engine: threads, kernels, tracing. Models are loaded into it.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "cutaway/model.h"
#include "cutaway/options.h"

namespace cutaway {

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
  // (schema/trace.schema.json).
  Status trace_to_file(const std::string& path, TraceLevel level);
  // Waits until every record is written; the first error of a sink, if any.
  Status flush_trace();

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
