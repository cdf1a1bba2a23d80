// Spans as OpenTelemetry's OTLP has them in JSON (opentelemetry.io/docs/specs/otlp, "JSON Protobuf
// Encoding": ids are hex, 64-bit numbers are text), with the semantic conventions for generative AI
// (gen_ai.*) on each run's request.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "trace/otlp_settings.h"
#include "trace/tracer.h"

namespace cutaway::trace {

class OtlpEncoder {
 public:
  explicit OtlpEncoder(const OtlpResource& resource);

  // A record that ends a span appends the span's JSON to `out`, and then true comes back. The spans
  // of a run are a trace, all others are the process's; with a parent both are the parent's trace.
  bool add(const Record& record, std::string& out);

  // What stands before and after the spans (with commas between) of one ExportTraceServiceRequest.
  const std::string& head() const { return head_; }
  static constexpr std::string_view kTail = "]}]}]}";

 private:
  struct Span {
    uint64_t id;
    int64_t start_ns;  // since the Unix epoch
    Hash128 trace;
    bool request;  // a run's request
    std::string attributes, events;
    std::string name;   // of a request: "chat MODEL"
    std::string error;  // its message
  };

  uint64_t next_id();
  int64_t epoch_ns(const Record& record);
  Hash128 trace_of(const Record& record) const;
  void add_attributes(Span& span, const Record& record, const std::string& prefix);
  void add_event(Span& span, const Record& record);
  void append_span(std::string& out, const Record& record, const std::vector<Span>& open) const;

  std::string head_;
  const std::optional<TraceParent> parent_;
  const Hash128 process_trace_;  // of spans that belong to no run
  const uint64_t seed_;
  int64_t epoch_at_start_ns_ = 0;  // 0: not known yet
  uint64_t counter_ = 0;
  std::map<uint32_t, std::vector<Span>> open_;  // by thread
};

}  // namespace cutaway::trace
