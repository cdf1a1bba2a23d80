// A file in memory, for readers that take paths.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "base/check.h"

class MemoryFile {
 public:
  explicit MemoryFile(const char* name) : fd_(::memfd_create(name, 0)) {
    CUTAWAY_CHECK(fd_ >= 0);
    path_ = "/proc/self/fd/" + std::to_string(fd_);
  }
  void set(const uint8_t* data, size_t size) {
    CUTAWAY_CHECK(::ftruncate(fd_, 0) == 0);
    for (size_t at = 0; at < size;) {
      const ssize_t n = ::pwrite(fd_, data + at, size - at, static_cast<off_t>(at));
      CUTAWAY_CHECK(n > 0);
      at += static_cast<size_t>(n);
    }
  }
  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};
