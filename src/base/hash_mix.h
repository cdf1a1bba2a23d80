// Quick hashes for flat tables in memory (the records' hash is hash.h's).
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace cutaway {

__extension__ using Wide = unsigned __int128;

inline uint64_t mix64(uint64_t a, uint64_t b) {
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// The n bytes at p, 0 to 8 of them, as one number: no two texts of one length have the same.
inline uint64_t load_up_to_8(const char* p, size_t n) {
  uint64_t word = 0;
  if (n >= 8) {
    std::memcpy(&word, p, 8);
  } else if (n >= 4) {  // two loads that overlap, rather than a loop
    uint32_t first, last;
    std::memcpy(&first, p, 4);
    std::memcpy(&last, p + n - 4, 4);
    word = static_cast<uint64_t>(last) << 32 | first;
  } else if (n > 0) {
    word = static_cast<uint64_t>(static_cast<uint8_t>(p[n - 1])) << 16 |
           static_cast<uint64_t>(static_cast<uint8_t>(p[n / 2])) << 8 | static_cast<uint8_t>(p[0]);
  }
  return word;
}

// Of a few bytes (a token, a word): eight at a time, folded by multiplication.
inline uint32_t hash_bytes(std::string_view s) {
  constexpr uint64_t kA = 0x9E3779B97F4A7C15u, kB = 0xD6E8FEB86659FD93u;
  uint64_t h = s.size() * kB;
  const char* p = s.data();
  size_t n = s.size();
  for (; n > 8; n -= 8, p += 8) h = mix64(h ^ load_up_to_8(p, 8), kA);
  return static_cast<uint32_t>(mix64(h ^ load_up_to_8(p, n), kB) >> 16);
}

}  // namespace cutaway
