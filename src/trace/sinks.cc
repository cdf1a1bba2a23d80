#include "trace/sinks.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "trace/line_format.h"

namespace cutaway::trace {
namespace {

// Bytes gathered before they go out; a flush sends what is there.
constexpr size_t kBatch = 64 * 1024;

// Gathers lines and sends them in batches; keeps the first error and is silent after it. status()
// may be asked from any thread.
class BatchSink : public Sink {
 public:
  explicit BatchSink(std::string what) : what_(std::move(what)) { buffer_.reserve(kBatch + 4096); }

  void write(const Record& record) final {
    if (failed_) return;
    append(buffer_, record);
    buffer_ += '\n';
    if (buffer_.size() >= kBatch) send_buffer(false);
  }
  void flush() final { send_buffer(true); }
  Status status() const final {
    const std::lock_guard lock(mutex_);
    return status_;
  }

 protected:
  virtual void append(std::string& out, const Record& record) = 0;
  // All of `bytes`, and with `now` on to the system; an errno, or 0.
  virtual int send(std::string_view bytes, bool now) = 0;

 private:
  void send_buffer(bool now) {
    if (failed_ || buffer_.empty()) return;
    const int code = send(buffer_, now);
    buffer_.clear();
    if (code == 0) return;
    failed_ = true;
    const std::lock_guard lock(mutex_);
    status_ = Error{ErrorCode::kIo, "cannot write the trace to " + what_ + ": " +
                                        std::strerror(code) + "; later records are not written"};
  }

  const std::string what_;
  std::string buffer_;
  bool failed_ = false;  // the background thread's copy of !status_.ok()
  mutable std::mutex mutex_;
  Status status_;
};

class ConsoleSink final : public BatchSink {
 public:
  ConsoleSink(std::FILE* stream, bool colour)
      : BatchSink("the console"), stream_(stream), colour_(colour) {}

 private:
  void append(std::string& out, const Record& record) override {
    format_.append_console(out, record, colour_);
  }
  int send(std::string_view bytes, bool now) override {
    errno = 0;
    const bool sent = std::fwrite(bytes.data(), 1, bytes.size(), stream_) == bytes.size() &&
                      (!now || std::fflush(stream_) == 0);
    return sent ? 0 : errno != 0 ? errno : EIO;
  }

  std::FILE* const stream_;
  const bool colour_;
  LineFormat format_;
};

class JsonlSink final : public BatchSink {
 public:
  JsonlSink(const std::string& path, int fd) : BatchSink(path), fd_(fd) {}
  ~JsonlSink() override { ::close(fd_); }

 private:
  void append(std::string& out, const Record& record) override { format_.append_json(out, record); }
  int send(std::string_view bytes, bool) override {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return 0;
  }

  const int fd_;
  LineFormat format_;
};

}  // namespace

std::shared_ptr<Sink> make_console_sink(std::FILE* stream, bool colour) {
  return std::make_shared<ConsoleSink>(stream, colour);
}

Result<std::shared_ptr<Sink>> make_jsonl_sink(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    return Error{ErrorCode::kIo, "cannot write the trace to " + path + ": " + std::strerror(errno),
                 "trace-out"};
  }
  return std::shared_ptr<Sink>(std::make_shared<JsonlSink>(path, fd));
}

}  // namespace cutaway::trace
