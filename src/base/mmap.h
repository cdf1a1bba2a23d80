// A file mapped read-only. The mapping lives as long as the object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace cutaway {

class MappedFile {
 public:
  // Errors: kNotFound, kIo (permission, a directory), kInvalidFile (empty file).
  static Result<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Tells the kernel that these bytes will not be read again soon; they stay readable.
  void drop_pages(size_t offset, size_t size) const;

 private:
  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cutaway
