// A file that is read where it is asked for, never mapped: one that is cut while it is read, or
// whose disk fails, gives an error, where a mapping would end the program (SIGBUS).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace cutaway {

class InputFile {
 public:
  // Errors: kNotFound, kIo (permission, a directory, a pipe), kInvalidFile (empty file). Never
  // waits for the other end of a pipe.
  static Result<InputFile> open(const std::string& path);
  // Bytes that the caller keeps alive, behind the same interface. `name` stands in messages.
  static InputFile over(std::span<const uint8_t> bytes, std::string name);

  InputFile() = default;
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& path() const { return path_; }
  // In bytes, when the file was opened.
  uint64_t size() const { return size_; }
  // Of over(): the bytes themselves; else null.
  const uint8_t* in_memory() const { return bytes_; }

  // Fills `out` with the bytes from `offset` on. Any number of threads at once. Errors kIo: what
  // the system says, or that the file has become shorter.
  Status read(uint64_t offset, std::span<uint8_t> out) const;
  // Error kInvalidFile when the file's size or time of modification is another than when it was
  // opened: what was read before and after may not belong together.
  Status check_unchanged() const;

 private:
  std::string path_;
  int fd_ = -1;
  const uint8_t* bytes_ = nullptr;
  uint64_t size_ = 0;
  int64_t modified_ns_ = 0;
};

}  // namespace cutaway
