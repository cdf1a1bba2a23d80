// The trace of one run, written while it runs into its recording.
#pragma once

#include <memory>
#include <string>

#include "trace/tracer.h"

namespace cutaway::api {

// A sink of the tracer for as long as it lives. The file has the lines of schema/trace.schema.json
// that belong to the run.
class RunTrace {
 public:
  // `tracer` outlives it. Error kIo when the file cannot be made.
  static Result<std::unique_ptr<RunTrace>> begin(trace::Tracer& tracer, const std::string& run,
                                                 const std::string& path, trace::Level level);
  ~RunTrace();
  RunTrace(const RunTrace&) = delete;
  RunTrace& operator=(const RunTrace&) = delete;

  // Everything that was traced until now is in the file, which is closed. Error kIo: the first that
  // writing met.
  Status end();

 private:
  RunTrace(trace::Tracer& tracer, std::shared_ptr<trace::Sink> sink)
      : tracer_(tracer), sink_(std::move(sink)) {}

  trace::Tracer& tracer_;
  std::shared_ptr<trace::Sink> sink_;
};

}  // namespace cutaway::api
