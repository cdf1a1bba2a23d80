#include "base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace cutaway {
namespace {

int64_t modified_ns(const struct stat& info) {
  return static_cast<int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
}

Error io_error(const std::string& what, int code) {
  return {ErrorCode::kIo, what + ": " + std::strerror(code), "path"};
}

}  // namespace

Result<InputFile> InputFile::open(const std::string& path) {
  InputFile file;
  file.path_ = path;
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file.fd_ < 0) {
    const int code = errno;
    Error error = io_error("cannot open " + path, code);
    if (code == ENOENT || code == ENOTDIR) error.code = ErrorCode::kNotFound;
    return error;
  }
  struct stat info{};
  if (::fstat(file.fd_, &info) != 0) return io_error("cannot stat " + path, errno);
  if (!S_ISREG(info.st_mode)) {
    return Error{ErrorCode::kIo, path + " is not a regular file", "path"};
  }
  if (info.st_size == 0) {
    return Error{ErrorCode::kInvalidFile, path + " is empty (0 bytes)", "path"};
  }
  file.size_ = static_cast<uint64_t>(info.st_size);
  file.modified_ns_ = modified_ns(info);
  return file;
}

InputFile InputFile::over(std::span<const uint8_t> bytes, std::string name) {
  InputFile file;
  file.path_ = std::move(name);
  file.bytes_ = bytes.data();
  file.size_ = bytes.size();
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      bytes_(std::exchange(other.bytes_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      modified_ns_(other.modified_ns_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
  std::swap(modified_ns_, other.modified_ns_);
  return *this;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status InputFile::read(uint64_t offset, std::span<uint8_t> out) const {
  if (offset > size_ || out.size() > size_ - offset) {
    return Error{ErrorCode::kIo,
                 path_ + ": bytes " + std::to_string(offset) + " to " +
                     std::to_string(offset + out.size()) + " are past its end at " +
                     std::to_string(size_),
                 "path"};
  }
  if (bytes_ != nullptr) {
    std::copy_n(bytes_ + offset, out.size(), out.data());
    return {};
  }
  for (size_t done = 0; done < out.size();) {
    const ssize_t n =
        ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return io_error("cannot read " + path_ + " at byte " + std::to_string(offset), errno);
    if (n == 0) {
      return Error{ErrorCode::kIo,
                   path_ + " has no byte " + std::to_string(offset + done) + " any more; it had " +
                       std::to_string(size_) +
                       " bytes when it was opened: it was cut while it was being read",
                   "path"};
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

Status InputFile::check_unchanged() const {
  if (fd_ < 0) return {};
  struct stat info{};
  if (::fstat(fd_, &info) != 0) return io_error("cannot stat " + path_, errno);
  if (static_cast<uint64_t>(info.st_size) == size_ && modified_ns(info) == modified_ns_) return {};
  return Error{ErrorCode::kInvalidFile,
               path_ + " was changed while it was being read; load it again when it is complete",
               "path"};
}

}  // namespace cutaway
