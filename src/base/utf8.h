// UTF-8 as bytes arrive: decoding, validity, and the longest prefix that ends no character midway.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cutaway {

// Decodes the character at s[pos] and sets `length` to its bytes. A byte that begins no valid
// character (overlong, surrogate, above U+10FFFF, cut short) gives -1 with length 1.
int32_t utf8_decode(std::string_view s, size_t pos, size_t& length) noexcept;

// Appends a Unicode scalar value.
void utf8_append(std::string& out, uint32_t code_point);

bool utf8_valid(std::string_view s) noexcept;

// Number of trailing bytes (0–3) that could still become a character once more bytes arrive.
size_t utf8_incomplete_tail(std::string_view s) noexcept;

// Every maximal invalid sequence becomes one U+FFFD (the WHATWG rule).
std::string utf8_replace_invalid(std::string_view s);

}  // namespace cutaway
