// The blocks of layout.h as structs: what one group of 16 rows holds per 32 K. Internal to
// kernels/.
#pragma once

#include <cstdint>

#include "kernels/layout.h"

namespace cutaway::kernels {

// q[j][4·r + i] holds row r's K elements 4·j + i (low nibble) and 16 + 4·j + i (high nibble).
struct NibbleMinBlock {
  uint16_t d[kGroupRows];
  uint16_t m[kGroupRows];
  uint8_t q[4][4 * kGroupRows];
};

struct NibbleBlock {
  uint16_t d[kGroupRows];
  uint8_t q[4][4 * kGroupRows];
};

// q[j][4·r + i] holds row r's K element 4·j + i.
struct ByteBlock {
  uint16_t d[kGroupRows];
  int8_t q[8][4 * kGroupRows];
};

static_assert(sizeof(NibbleMinBlock) == 320 && sizeof(NibbleBlock) == 288 &&
              sizeof(ByteBlock) == 544);

// Value (0 … 15) of row r's K element k (0 … 31) in interleaved nibbles.
inline int nibble_at(const uint8_t (&q)[4][4 * kGroupRows], int64_t r, int64_t k) noexcept {
  const uint8_t byte = q[k % 16 / 4][4 * r + k % 4];
  return k < 16 ? byte & 15 : byte >> 4;
}

inline int byte_at(const ByteBlock& block, int64_t r, int64_t k) noexcept {
  return block.q[k / 4][4 * r + k % 4];
}

}  // namespace cutaway::kernels
