#include "trace/batch_sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace cutaway::trace {
namespace {

// Bytes gathered before they go out; a flush sends what is there.
constexpr size_t kBatch = 64 * 1024;

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

FileSink::~FileSink() { ::close(fd_); }

int FileSink::send(std::string_view bytes, bool) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

Result<int> open_trace_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    return Error{ErrorCode::kIo, "cannot write the trace to " + path + ": " + std::strerror(errno),
                 "trace-out"};
  }
  return fd;
}

}  // namespace cutaway::trace
