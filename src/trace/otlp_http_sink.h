// OTLP over HTTP: spans to a collector, in batches, from a thread of the sink's own.
#pragma once

#include <memory>

#include "trace/otlp_settings.h"
#include "trace/tracer.h"

namespace cutaway::trace {

class OtlpHttpSink : public Sink {
 public:
  struct Counts {
    uint64_t spans = 0;       // that ended
    uint64_t delivered = 0;   // that the collector took
    uint64_t queue_full = 0;  // dropped because the collector was too slow
    uint64_t given_up = 0;    // dropped after all tries, or at the end
    uint64_t refused = 0;     // by a collector that took the rest of their batch
    uint64_t requests = 0, retries = 0;
  };
  virtual Counts counts() const = 0;
};

// write() takes room in a bounded queue and never waits; a collector that is down, slow or hangs
// costs spans, which are counted. Answers 429, 502, 503 and 504 and connections that fail are tried
// again, after Retry-After or with growing pauses. finish() waits until everything is delivered or
// given up, for at most the settings' timeout and a second; nothing listening there ends it at
// once. warnings() has a sentence with the counts when spans were lost; status() is never an error.
// Error kIo when the thread cannot be started.
Result<std::shared_ptr<OtlpHttpSink>> make_otlp_http_sink(OtlpSettings settings);

}  // namespace cutaway::trace
