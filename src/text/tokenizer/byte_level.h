// The alphabet of byte-level BPE (GPT-2's): every byte stands as one printable character, so that a
// vocabulary can be a list of strings. Bytes that print stand for themselves, the others in order
// for U+0100, U+0101, …
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace cutaway::text {

struct ByteLevelAlphabet {
  static constexpr uint32_t kEnd = 0x144;  // one past the last character used
  std::array<uint16_t, 256> character{};
  std::array<int16_t, kEnd> byte{};  // −1: not in the alphabet

  constexpr ByteLevelAlphabet() {
    byte.fill(-1);
    uint16_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool prints = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      character[b] = prints ? static_cast<uint16_t>(b) : next++;
      byte[character[b]] = static_cast<int16_t>(b);
    }
  }
};
inline constexpr ByteLevelAlphabet kByteLevel;

// Writes the bytes that `spelling` stands for to `out`, which has room for spelling.size(); returns
// how many, or −1 when a character is not of the alphabet.
inline int64_t byte_level_decode(std::string_view spelling, char* out) {
  int64_t n = 0;
  for (size_t i = 0; i < spelling.size(); ++i) {
    uint32_t c = static_cast<uint8_t>(spelling[i]);
    if (c >= 0x80) {  // the whole alphabet is of one or two bytes
      if (c < 0xC2 || c > 0xC5 || i + 1 == spelling.size()) return -1;
      const uint32_t second = static_cast<uint8_t>(spelling[++i]);
      if ((second & 0xC0) != 0x80) return -1;
      c = (c & 0x1F) << 6 | (second & 0x3F);
    }
    if (c >= ByteLevelAlphabet::kEnd || kByteLevel.byte[c] < 0) return -1;
    out[n++] = static_cast<char>(kByteLevel.byte[c]);
  }
  return n;
}

}  // namespace cutaway::text
