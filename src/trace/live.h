// The live side stream: subscribers that come and go while the engine runs, each with a bounded
// queue of its own. A reader that is too slow loses records and is told how many; nobody waits for
// it.
//
//   LiveHub hub(tracer);
//   auto stream = hub.subscribe({.run = id, .level = Level::kFunctions});
//   while (true) {
//     const LiveStream::Batch batch = stream->next(256, std::chrono::seconds(15));
//     for (const auto& line : batch.lines) …  // as JSONL has it (schema/trace.schema.json)
//     if (batch.ended) break;
//   }
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trace/tracer.h"

namespace cutaway::trace {

struct LiveOptions {
  std::string run;  // the id of the one run to watch; empty: everything
  Level level = Level::kFunctions;
  size_t max_lines = 8192;     // that wait to be read
  size_t max_bytes = 4 << 20;  // of them
};

// A subscriber's end. next() is for one thread at a time; destroyed, it is unsubscribed.
class LiveStream {
 public:
  virtual ~LiveStream() = default;

  struct Batch {
    // Without a newline. Where records were dropped an event stands in their place:
    // "trace.dropped", with their count as `records`.
    std::vector<std::shared_ptr<const std::string>> lines;
    bool ended = false;  // the hub is gone: nothing comes after these
  };
  // What is there, at most `max_lines`; waits for up to `timeout` when there is nothing.
  virtual Batch next(size_t max_lines, std::chrono::milliseconds timeout) = 0;

  struct Stats {
    uint64_t records = 0;  // that were queued
    uint64_t dropped = 0;
  };
  virtual Stats stats() const = 0;
};

// Of one tracer, which outlives it. Streams may outlive it. Threads: any.
class LiveHub {
 public:
  explicit LiveHub(Tracer& tracer);
  ~LiveHub();  // ends the streams
  LiveHub(const LiveHub&) = delete;
  LiveHub& operator=(const LiveHub&) = delete;

  // From now on. The tracer's level rises to the highest of its subscribers' and sinks', and falls
  // when they leave; a run that is under way follows with its next phase or token.
  std::unique_ptr<LiveStream> subscribe(LiveOptions options);
  size_t subscribers() const;

 private:
  class Core;
  class Stream;
  std::shared_ptr<Core> core_;
};

}  // namespace cutaway::trace
