#include "formats/safetensors_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/json.h"
#include "trace/trace.h"

namespace cutaway::formats {
namespace {

Error io_error(const std::string& what, const std::string& path) {
  return {ErrorCode::kIo, what + " " + path + ": " + std::strerror(errno), "output"};
}

Status write_at(int fd, const void* data, size_t size, int64_t offset, const std::string& path) {
  const char* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::pwrite(fd, from, size, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error("cannot write", path);
    from += n;
    offset += n;
    size -= static_cast<size_t>(n);
  }
  return {};
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::string& path, const std::vector<Tensor>& tensors,
    const std::map<std::string, std::string>& metadata) {
  CUTAWAY_SPAN(span, "formats::SafetensorsWriter::create", "path", path, "tensors", tensors.size());
  struct stat existing{};
  if (::stat(path.c_str(), &existing) == 0 && !S_ISREG(existing.st_mode)) {
    return Error{ErrorCode::kIo, path + " exists and is not a regular file", "output"};
  }
  SafetensorsWriter out;
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    int64_t bytes = sizeof(float);
    for (const int64_t dim : tensor.shape) bytes *= dim;
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {at, at + bytes}}};
    out.offsets_.push_back(at);
    at += bytes;
  }
  std::string text = to_text(header);
  text.append((8 - text.size() % 8) % 8, ' ');  // data begins aligned
  out.path_ = path;
  out.temporary_ = path + ".XXXXXX";
  out.fd_ = ::mkostemp(out.temporary_.data(), O_CLOEXEC);
  if (out.fd_ < 0) {
    out.temporary_.clear();
    return io_error("cannot create a file beside", path);
  }
  const auto length = static_cast<uint64_t>(text.size());
  CUTAWAY_TRY(write_at(out.fd_, &length, sizeof length, 0, path));
  CUTAWAY_TRY(write_at(out.fd_, text.data(), text.size(), sizeof length, path));
  out.data_begin_ = static_cast<int64_t>(sizeof length + text.size());
  out.data_bytes_ = at;
  if (::ftruncate(out.fd_, out.data_begin_ + at) != 0) return io_error("cannot extend", path);
  CUTAWAY_OUT(span, "bytes", out.data_begin_ + at);
  return out;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)),
      data_begin_(other.data_begin_),
      data_bytes_(other.data_bytes_),
      mapped_(std::exchange(other.mapped_, nullptr)),
      offsets_(std::move(other.offsets_)),
      status_(std::move(other.status_)) {}

SafetensorsWriter::~SafetensorsWriter() {
  if (mapped_ != nullptr) ::munmap(mapped_, static_cast<size_t>(data_begin_ + data_bytes_));
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Result<float*> SafetensorsWriter::map() {
  CUTAWAY_SPAN(span, "formats::SafetensorsWriter::map", "bytes", data_bytes_);
  const int64_t size = data_begin_ + data_bytes_;
  // A page that the disk has no room for would end the program when it is written.
  if (const int failed = ::posix_fallocate(fd_, 0, size); failed != 0) {
    errno = failed;
    return io_error("cannot extend", path_);
  }
  void* mapped =
      ::mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (mapped == MAP_FAILED) return io_error("cannot map", path_);
  mapped_ = static_cast<uint8_t*>(mapped);
  CUTAWAY_OUT(span, "begin", data_begin_);
  return reinterpret_cast<float*>(mapped_ + data_begin_);
}

void SafetensorsWriter::write(size_t index, int64_t element, std::span<const float> values) {
  CUTAWAY_SPAN(span, "formats::SafetensorsWriter::write", "tensor", index, "element", element, "n",
               values.size());
  if (!status_.ok()) return;
  status_ = write_at(fd_, values.data(), values.size_bytes(),
                     data_begin_ + offsets_[index] + element * static_cast<int64_t>(sizeof(float)),
                     path_);
  CUTAWAY_OUT(span, "ok", status_.ok());
}

Status SafetensorsWriter::commit(Durability durability) {
  CUTAWAY_SPAN(span, "formats::SafetensorsWriter::commit", "path", path_);
  if (mapped_ != nullptr) {
    ::munmap(std::exchange(mapped_, nullptr), static_cast<size_t>(data_begin_ + data_bytes_));
  }
  if (!status_.ok()) return status_;
  // mkostemp makes 0600; a result file gets what the user's umask gives new files.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  const bool sync = durability == Durability::kSynced;
  if (::fchmod(fd_, 0666 & ~mask) != 0 || (sync && ::fsync(fd_) != 0)) {
    return io_error("cannot finish", path_);
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return io_error("cannot create", path_);
  temporary_.clear();
  CUTAWAY_OUT(span, "done", true);
  return {};
}

}  // namespace cutaway::formats
