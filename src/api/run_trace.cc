#include "api/run_trace.h"

#include "trace/sinks.h"
#include "trace/trace.h"

namespace cutaway::api {
namespace {

class OneRun final : public trace::Sink {
 public:
  OneRun(std::shared_ptr<trace::Sink> file, std::string run)
      : file_(std::move(file)), run_(std::move(run)) {}

  void write(const trace::Record& record) override {
    if (record.run == run_) file_->write(record);
  }
  void flush() override { file_->flush(); }
  Status status() const override { return file_->status(); }

 private:
  const std::shared_ptr<trace::Sink> file_;
  const std::string run_;
};

}  // namespace

Result<std::unique_ptr<RunTrace>> RunTrace::begin(trace::Tracer& tracer, const std::string& run,
                                                  const std::string& path, trace::Level level) {
  CUTAWAY_SPAN(span, "api::RunTrace::begin", "run", run, "level", trace::level_name(level));
  CUTAWAY_ASSIGN(std::shared_ptr<trace::Sink> file, trace::make_jsonl_sink(path));
  auto sink = std::make_shared<OneRun>(std::move(file), run);
  tracer.add_sink(sink, level);
  return std::unique_ptr<RunTrace>(new RunTrace(tracer, std::move(sink)));
}

Status RunTrace::end() {
  CUTAWAY_SPAN(span, "api::RunTrace::end");
  if (sink_ == nullptr) return {};
  const std::shared_ptr<trace::Sink> sink = std::move(sink_);
  tracer_.remove_sink(sink);
  sink->flush();
  return sink->status();
}

RunTrace::~RunTrace() {
  if (sink_ != nullptr) tracer_.remove_sink(sink_);
}

}  // namespace cutaway::api
