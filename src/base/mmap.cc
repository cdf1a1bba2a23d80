#include "base/mmap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace cutaway {

Result<MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const int code = errno;
    return Error{code == ENOENT || code == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo,
                 "cannot open " + path + ": " + std::strerror(code), "path"};
  }
  struct stat info{};
  MappedFile file;
  file.path_ = path;
  Status status;
  if (::fstat(fd, &info) != 0) {
    status = Error{ErrorCode::kIo, "cannot stat " + path + ": " + std::strerror(errno), "path"};
  } else if (!S_ISREG(info.st_mode)) {
    status = Error{ErrorCode::kIo, path + " is not a regular file", "path"};
  } else if (info.st_size == 0) {
    status = Error{ErrorCode::kInvalidFile, path + " is empty (0 bytes)", "path"};
  } else {
    file.size_ = static_cast<size_t>(info.st_size);
    void* mapped = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapped == MAP_FAILED) {
      file.size_ = 0;
      status = Error{ErrorCode::kIo, "cannot map " + path + ": " + std::strerror(errno), "path"};
    } else {
      file.data_ = static_cast<const uint8_t*>(mapped);
    }
  }
  ::close(fd);
  if (!status.ok()) return status.error();
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

void MappedFile::drop_pages(size_t offset, size_t size) const {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = (offset + size) / page * page;
  if (begin < end && end <= size_) {
    ::madvise(const_cast<uint8_t*>(data_) + begin, end - begin, MADV_DONTNEED);
  }
}

}  // namespace cutaway
