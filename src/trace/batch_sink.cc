#include "trace/batch_sink.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace cutaway::trace {
namespace {

// Bytes gathered before they go out; a flush sends what is there.
constexpr size_t kBatch = 64 * 1024;
constexpr size_t kPage = 4096;

}  // namespace

BatchSink::BatchSink(std::string what) : what_(std::move(what)) { buffer_.reserve(kBatch + 4096); }

void BatchSink::write(const Record& record) {
  if (failed_) return;
  append(buffer_, record);
  if (buffer_.size() >= kBatch) send_buffer(false);
}

void BatchSink::flush() {
  settle(buffer_);
  send_buffer(true);
}

Status BatchSink::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void BatchSink::send_buffer(bool now) {
  if (failed_ || buffer_.empty()) return;
  const int code = send(buffer_, now);
  buffer_.clear();
  if (code == 0) return;
  failed_ = true;
  const std::lock_guard lock(mutex_);
  status_ = Error{ErrorCode::kIo, "cannot write the trace to " + what_ + ": " +
                                      std::strerror(code) + "; later records are not written"};
}

FileSink::FileSink(const std::string& path, int fd) : BatchSink(path), fd_(fd) {
  struct stat status = {};
  regular_ = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

FileSink::~FileSink() { ::close(fd_); }

int FileSink::send(std::string_view bytes, bool) {
  while (!bytes.empty()) {
    const ssize_t n = regular_
                          ? ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(written_))
                          : ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(n));
    written_ += static_cast<uint64_t>(n);
  }
  return 0;
}

void FileSink::keep_whole(std::string& out, size_t begin) {
  const size_t used = (written_ + begin) % kPage, size = out.size() - begin;
  if (!regular_ || used == 0 || used + size <= kPage || size > kPage) return;
  if (begin == 0) {  // the last line's end is in the file already: it is written again
    --written_;
    out.insert(begin++, 1, '\n');
  }
  out.insert(begin - 1, kPage - used, ' ');
}

Result<int> open_trace_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0 && errno == EINTR) {  // a pipe that nobody reads yet, and Ctrl-C
    return Error{ErrorCode::kCancelled, "waiting for a reader of " + path + " was cancelled",
                 "trace-out"};
  }
  if (fd < 0) {
    return Error{ErrorCode::kIo, "cannot write the trace to " + path + ": " + std::strerror(errno),
                 "trace-out"};
  }
  return fd;
}

}  // namespace cutaway::trace
