// A sink that gathers text and sends it in batches, and one that sends it to a file.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "trace/tracer.h"

namespace cutaway::trace {

// Keeps the first error and is silent after it. status() may be asked from any thread, the rest is
// the background thread's.
class BatchSink : public Sink {
 public:
  // `what` the text goes to, for errors.
  explicit BatchSink(std::string what);

  void write(const Record& record) final;
  void flush() final;
  Status status() const final;

 protected:
  // The text of one record, its separator included.
  virtual void append(std::string& out, const Record& record) = 0;
  // Before what is gathered goes out for good: ends what must not be cut in the middle.
  virtual void settle(std::string& out) {}
  // All of `bytes`, and with `now` on to the system; an errno, or 0.
  virtual int send(std::string_view bytes, bool now) = 0;
  // For text that is no record's: a beginning, an end.
  std::string& buffer() { return buffer_; }

 private:
  void send_buffer(bool now);

  const std::string what_;
  std::string buffer_;
  bool failed_ = false;  // the background thread's copy of !status_.ok()
  mutable std::mutex mutex_;
  Status status_;
};

// Owns `fd`, closed at the end.
class FileSink : public BatchSink {
 public:
  FileSink(const std::string& path, int fd);
  ~FileSink() override;

 protected:
  int send(std::string_view bytes, bool now) final;
  // After a line was appended to `out` at `begin`: where it would cross from one page of the file
  // into the next, spaces before the end of the line before move it there. A process that is killed
  // while it writes has written whole pages, and these then end with a line.
  void keep_whole(std::string& out, size_t begin);

 private:
  const int fd_;
  bool regular_;          // a file that is written at offsets; a pipe or a device is not
  uint64_t written_ = 0;  // bytes; where `out` begins
};

// Makes or empties the file of a trace. Error kIo names it.
Result<int> open_trace_file(const std::string& path);

}  // namespace cutaway::trace
