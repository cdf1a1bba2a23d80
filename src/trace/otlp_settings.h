// Where a trace in OTLP goes and what it says of its process, as OpenTelemetry's environment
// variables have it (opentelemetry.io/docs/specs/otel/protocol/exporter).
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/result.h"

namespace cutaway::trace {

// The caller's span, which the spans of this process are to be below.
struct TraceParent {
  Hash128 trace;
  uint64_t span = 0;
  std::string state;  // W3C's tracestate, handed on as it came
};

// W3C's traceparent: 00-TRACE-PARENT-FLAGS in lower-case hex; later versions may have more behind.
// Nothing when it is malformed.
std::optional<TraceParent> parse_traceparent(std::string_view text);

struct OtlpResource {
  // service.name first; all values are text.
  std::vector<std::pair<std::string, std::string>> attributes;
  std::optional<TraceParent> parent;
  // What of the environment is not followed, a sentence each.
  std::vector<std::string> warnings;
};

// A variable's value, or null.
using Environment = std::function<const char*(const char*)>;
Environment process_environment();

// OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, TRACEPARENT, TRACESTATE. What is malformed there is
// a warning: another program wrote it.
OtlpResource otlp_resource(const Environment& environment);

struct OtlpSettings {
  std::string url;  // of the traces; may hold user:password@
  std::vector<std::pair<std::string, std::string>> headers;  // may hold keys: never shown
  std::chrono::milliseconds timeout{10'000};  // of a request, and of the wait at the end
  OtlpResource resource;
  // What no variable says.
  std::chrono::milliseconds delay{1'000};          // the oldest span waits no longer than this
  std::chrono::milliseconds first_backoff{1'000};  // doubled with each try, up to the next
  std::chrono::milliseconds longest_backoff{30'000};
  std::chrono::milliseconds give_up_after{60'000};  // a batch, from its first try on
  size_t batch_spans = 512;
  size_t batch_bytes = 1 << 20;
  size_t queue_bytes = 16 << 20;  // spans beyond are dropped and counted
};

// Whether `target` names a collector: "otlp", "otlp:URL", "http://…" or "https://…".
bool is_otlp_target(std::string_view target);

// A target with a URL: /v1/traces is appended unless it ends so. "otlp" alone: the environment's
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT (as it is) or OTEL_EXPORTER_OTLP_ENDPOINT (with /v1/traces
// appended), else http://localhost:4318. Headers, timeout and protocol are the environment's.
// Errors are kInvalidArgument or kUnsupported, name the variable, and never show a header's value.
Result<OtlpSettings> otlp_settings(std::string_view target, const Environment& environment);

}  // namespace cutaway::trace
