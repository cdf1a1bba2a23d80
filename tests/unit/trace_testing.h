// What the tests of the trace share.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "trace/sinks.h"
#include "trace/trace.h"
#include "trace/tracer.h"

namespace cutaway::trace {

// Keeps what it was given, formatted at once (a record's fields live during write() only).
class Collect : public Sink {
 public:
  struct Kept {
    Record record;
    std::string line;
    std::string json;
    std::vector<Field> fields;
  };
  void write(const Record& record) override {
    if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    const std::lock_guard lock(mutex);
    Kept k{record, "", "", {record.fields.begin(), record.fields.end()}};
    if (format) {
      k.line = format_line(record, false).substr(13);  // without the time
      k.json = format_json(record);
    }
    k.record.fields = {};
    k.record.run = {};
    kept.push_back(std::move(k));
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex);
    std::vector<std::string> all;
    for (const Kept& k : kept) all.push_back(k.line);
    return all;
  }
  bool format = true;
  int delay_us = 0;
  std::mutex mutex;
  std::vector<Kept> kept;
};

class TempDir {
 public:
  TempDir() : path_(std::filesystem::temp_directory_path() / ("cutaway-trace-" + new_ulid())) {
    std::filesystem::create_directories(path_);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// What is traced here stands for real code.
inline int inner(int x) {
  CUTAWAY_SPAN(span, "test::inner", "x", x);
  CUTAWAY_OUT(span, "y", x + 1);
  return x + 1;
}

inline int outer(int x) {
  CUTAWAY_SPAN(span, "test::outer", "x", x);
  const int y = inner(inner(x));
  CUTAWAY_OUT(span, "y", y);
  return y;
}

inline Status fails_early(bool fail) {
  CUTAWAY_SPAN(span, "test::fails_early", "fail", fail);
  if (fail) return Error{ErrorCode::kInvalidArgument, "no"};
  CUTAWAY_OUT(span, "ok", true);
  return {};
}

// Runs `body` traced at `level` and returns the lines.
template <typename Body>
std::vector<std::string> traced(Level level, Body&& body) {
  auto sink = std::make_shared<Collect>();
  Tracer tracer;
  tracer.add_sink(sink, level);
  {
    const Attach attach(&tracer);
    body();
  }
  EXPECT_TRUE(tracer.flush().ok());
  return sink->lines();
}

}  // namespace cutaway::trace
