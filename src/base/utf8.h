// UTF-8 as bytes arrive: decoding, validity, and the longest prefix that ends no character midway.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cutaway {

// utf8_decode of any bytes; that one answers for most of them itself.
int32_t utf8_decode_any(std::string_view s, size_t pos, size_t& length) noexcept;

// Decodes the character at s[pos] and sets `length` to its bytes. A byte that begins no valid
// character (overlong, surrogate, above U+10FFFF, cut short) gives -1 with length 1.
inline int32_t utf8_decode(std::string_view s, size_t pos, size_t& length) noexcept {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<uint8_t>(s[pos + i]));
  };
  const uint32_t first = byte(0);
  if (first < 0x80) {
    length = 1;
    return static_cast<int32_t>(first);
  }
  if (s.size() - pos >= 3) {
    // Six bits each, if they are what follows the first byte of a character.
    const uint32_t second = byte(1) ^ 0x80, third = byte(2) ^ 0x80;
    if (first >= 0xE0) {
      const uint32_t code = (first & 0x0F) << 12 | second << 6 | third;
      if (first < 0xF0 && (second | third) < 0x40 && code >= 0x800 && (code & 0xF800) != 0xD800) {
        length = 3;
        return static_cast<int32_t>(code);
      }
    } else if (first >= 0xC2 && second < 0x40) {
      length = 2;
      return static_cast<int32_t>((first & 0x1F) << 6 | second);
    }
  }
  return utf8_decode_any(s, pos, length);
}

// Appends a Unicode scalar value.
void utf8_append(std::string& out, uint32_t code_point);

bool utf8_valid(std::string_view s) noexcept;

// Number of trailing bytes (0–3) that could still become a character once more bytes arrive.
size_t utf8_incomplete_tail(std::string_view s) noexcept;

// Every maximal invalid sequence becomes one U+FFFD (the WHATWG rule).
std::string utf8_replace_invalid(std::string_view s);

}  // namespace cutaway
