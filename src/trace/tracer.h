// The tracer: rings in, one background thread, sinks out. One per engine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "trace/trace.h"

namespace cutaway::trace {

// A record as sinks see it, on the background thread, in order per thread.
struct Record {
  RecordKind kind = RecordKind::kEvent;
  Phase phase = Phase::kStartup;
  uint16_t depth = 0;
  uint32_t thread = 0;       // small index, 0 is the first thread that traced
  int64_t time_ns = 0;       // since the tracer was made (monotonic)
  int64_t wall_us = 0;       // since the Unix epoch
  int64_t duration_ns = -1;  // exits only
  const char* name = "";
  Level level = Level::kFunctions;  // the lowest level at which this record is written
  Coordinates at;
  std::string_view run;  // the id of at.run, empty when that does not apply
  std::span<const Field> fields;
};

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(const Record& record) = 0;
  // Called when the queue has run empty and at the end.
  virtual void flush() {}
  // Waits, for a bounded time, until what was written has arrived: a collector's may be under way.
  // Called on the thread of who calls Tracer::finish().
  virtual void finish() {}
  // The first error met (disk full, closed pipe); records after it are not written.
  virtual Status status() const { return {}; }
  // What went wrong and is no error of a run, a sentence each. From any thread.
  virtual std::vector<std::string> warnings() const { return {}; }
};

class Tracer {
 public:
  // Starts no thread until a sink is there. Level kOff with no sinks costs nothing; records written
  // while no sink is there are counted and dropped.
  Tracer();
  ~Tracer();  // drains and flushes
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // The level in force is the maximum over the sinks that are attached; each sink gets the records
  // of its own level and below. After remove_sink returns, the sink has everything that was written
  // before, and is not called again.
  void add_sink(std::shared_ptr<Sink> sink, Level level);
  void remove_sink(const std::shared_ptr<Sink>& sink);
  // Of a sink that is attached; kOff: it gets nothing until its level is raised again. A thread
  // that traces follows with its next phase (a generated token is one).
  void set_level(const Sink* sink, Level level);
  Level level() const;

  // Gives a run a name for `at.run`; returns the index to put there. Names of the last kKeptRuns
  // runs are kept; older or unknown ones are "".
  static constexpr size_t kKeptRuns = 65536;
  int64_t name_run(std::string id);
  std::string run_id(int64_t index) const;

  // Blocks until everything written so far is in the sinks. First sink error, if any.
  Status flush();
  // The same, and waits for what the sinks have sent (Sink::finish).
  Status finish();
  std::vector<std::string> warnings() const;  // of all sinks

  struct Stats {
    uint64_t records = 0;
    int64_t blocked_ns = 0;  // time that traced threads waited for room in a ring
  };
  Stats stats() const;

  // Internal: called by spans. `now` is now_ns().
  void write(RecordKind kind, Level level, const char* name, int64_t now, int64_t duration_ns,
             const FieldList& fields);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cutaway::trace
