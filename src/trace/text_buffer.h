// Text of many small pieces: a traced pass writes tens of thousands of them a second.
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace cutaway::trace {

// Appends to `out`, which it holds, in runs: pieces gather in place, where one of known length
// costs a move or two and not a call. What was added is in `out` when the buffer ends.
class TextBuffer {
 public:
  explicit TextBuffer(std::string& out) : out_(out) {}
  ~TextBuffer() { flush(); }
  TextBuffer(const TextBuffer&) = delete;
  TextBuffer& operator=(const TextBuffer&) = delete;

  // A literal.
  template <size_t N>
  void operator+=(const char (&text)[N]) {
    static_assert(N <= kBytes);
    make_room(N);
    std::memcpy(bytes_ + used_, text, N - 1);
    used_ += N - 1;
  }
  void operator+=(std::string_view text) {
    if (text.size() > kBytes - used_) [[unlikely]] {
      flush();
      if (text.size() > kBytes) {
        out_ += text;
        return;
      }
    }
    std::memcpy(bytes_ + used_, text.data(), text.size());
    used_ += text.size();
  }
  void operator+=(char c) {
    make_room(1);
    bytes_[used_++] = c;
  }
  template <std::integral Int>
    requires(!std::same_as<Int, char> && !std::same_as<Int, bool>)
  void operator+=(Int value) {
    make_room(kMostDigits);
    used_ = static_cast<size_t>(
        std::to_chars(bytes_ + used_, bytes_ + used_ + kMostDigits, value).ptr - bytes_);
  }
  void repeat(size_t n, char c) {
    for (; n > 0; --n) *this += c;
  }

 private:
  static constexpr size_t kBytes = 512;
  static constexpr size_t kMostDigits = 20;  // of 64 bits, with a sign

  void make_room(size_t n) {
    if (n > kBytes - used_) [[unlikely]]
      flush();
  }
  void flush() {
    out_.append(bytes_, used_);
    used_ = 0;
  }

  std::string& out_;
  size_t used_ = 0;
  char bytes_[kBytes];
};

}  // namespace cutaway::trace
