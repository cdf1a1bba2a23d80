// OTLP in JSON in a file, as OpenTelemetry's file exporter writes it: one request a line.

#include "trace/batch_sink.h"
#include "trace/otlp_encoder.h"
#include "trace/sinks.h"

namespace cutaway::trace {
namespace {

constexpr size_t kSpansPerLine = 128;  // some 60 KB, which a killed process may lose

class OtlpSink final : public FileSink {
 public:
  OtlpSink(const std::string& path, int fd, const OtlpResource& resource)
      : FileSink(path, fd), encoder_(resource), warnings_(resource.warnings) {}
  ~OtlpSink() override { flush(); }

  std::vector<std::string> warnings() const override { return warnings_; }

 private:
  void append(std::string& out, const Record& record) override {
    span_.clear();
    if (!encoder_.add(record, span_)) return;
    line_ += spans_ == 0 ? encoder_.head() : ",";
    line_ += span_;
    if (++spans_ == kSpansPerLine) end_line(out);
  }

  void settle(std::string& out) override { end_line(out); }

  // Only whole lines go out: what a killed process leaves can be read to its last line.
  void end_line(std::string& out) {
    if (spans_ == 0) return;
    out += line_;
    out += OtlpEncoder::kTail;
    out += '\n';
    line_.clear();
    spans_ = 0;
  }

  OtlpEncoder encoder_;
  const std::vector<std::string> warnings_;
  std::string span_, line_;
  size_t spans_ = 0;  // in line_
};

}  // namespace

Result<std::shared_ptr<Sink>> make_otlp_sink(const std::string& path) {
  CUTAWAY_ASSIGN(const int fd, open_trace_file(path));
  return std::shared_ptr<Sink>(
      std::make_shared<OtlpSink>(path, fd, otlp_resource(process_environment())));
}

}  // namespace cutaway::trace
