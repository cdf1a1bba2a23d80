// Walks over a file from front to back, in small steps over a buffer that is filled in large ones.
#pragma once

#include <cstdint>
#include <vector>

#include "base/input_file.h"

namespace cutaway {

class FileWindow {
 public:
  // `file` outlives the window. Bytes in memory are handed out as they are.
  explicit FileWindow(const InputFile& file) : file_(file) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return file_.size() - position_; }
  void move_to(uint64_t position) { position_ = position; }

  // The next n bytes, without moving past them; valid until the next call. Null when the file could
  // not be read (error() says why). Precondition: n ≤ left().
  const uint8_t* peek(uint64_t n);
  const uint8_t* take(uint64_t n) {
    const uint8_t* at = peek(n);
    position_ += n;
    return at;
  }
  // The next out.size() bytes, past the buffer: for what is large. Precondition as above.
  Status take_into(std::span<uint8_t> out);

  const Error& error() const { return error_; }

 private:
  const InputFile& file_;
  uint64_t position_ = 0;
  uint64_t start_ = 0;  // of the buffer, in the file
  std::vector<uint8_t> buffer_;
  Error error_;
};

}  // namespace cutaway
