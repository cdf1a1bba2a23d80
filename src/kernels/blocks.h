// The blocks of layout.h as structs: what one group of 16 rows holds per 32 K. Internal to
// kernels/.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/layout.h"

namespace cutaway::kernels {

// q[j][4·r + i] holds row r's K elements 4·j + i (low nibble) and 16 + 4·j + i (high nibble).
//
// kOffset: how much more than its weight (in units of the row's scale) the integer is that the
// products of unsigned bytes take; what is too much is taken off by the sum of the activations.
struct NibbleMinBlock {
  static constexpr int kOffset = 0;
  uint16_t d[kGroupRows];
  uint16_t m[kGroupRows];
  uint8_t q[4][4 * kGroupRows];
};

struct NibbleBlock {
  static constexpr int kOffset = 8;
  uint16_t d[kGroupRows];
  uint8_t q[4][4 * kGroupRows];
};

// q[j][4·r + i] holds row r's K element 4·j + i.
struct ByteBlock {
  static constexpr int kOffset = 128;
  uint16_t d[kGroupRows];
  int8_t q[8][4 * kGroupRows];
};

// Bit j of fifth[4·r + i] is bit 4 of row r's K element 4·j + i.
struct FiveMinBlock {
  static constexpr int kOffset = 0;
  uint16_t d[kGroupRows];
  uint16_t m[kGroupRows];
  uint8_t fifth[4 * kGroupRows];
  uint8_t q[4][4 * kGroupRows];
};

struct FiveBlock {
  static constexpr int kOffset = 16;
  uint16_t d[kGroupRows];
  uint8_t fifth[4 * kGroupRows];
  uint8_t q[4][4 * kGroupRows];
};

// Nibbles that stand for the values of a table.
struct NonlinearBlock {
  static constexpr int kOffset = 128;
  static constexpr const int8_t (&kValues)[16] = kIQ4Values;
  uint16_t d[kGroupRows];
  uint8_t q[4][4 * kGroupRows];
};

struct MicroBlock {
  static constexpr int kOffset = 16;
  static constexpr const int8_t (&kValues)[16] = kMXFP4Values;
  uint8_t e[kGroupRows];
  uint8_t q[4][4 * kGroupRows];
};

static_assert(sizeof(NibbleMinBlock) == 320 && sizeof(NibbleBlock) == 288 &&
              sizeof(ByteBlock) == 544 && sizeof(FiveMinBlock) == 384 && sizeof(FiveBlock) == 352 &&
              sizeof(NonlinearBlock) == 288 && sizeof(MicroBlock) == 272);

// The values of a table, kOffset more than they are, so that they are unsigned.
struct OffsetValues {
  uint8_t values[16];
};
template <typename Block>
inline constexpr OffsetValues kOffsetValues = [] {
  OffsetValues out{};
  for (int i = 0; i < 16; ++i) {
    out.values[i] = static_cast<uint8_t>(Block::kValues[i] + Block::kOffset);
  }
  return out;
}();

template <typename Block>
inline constexpr bool kHasMin =
    std::is_same_v<Block, NibbleMinBlock> || std::is_same_v<Block, FiveMinBlock>;

template <typename Block>
inline constexpr bool kHasFifth =
    std::is_same_v<Block, FiveMinBlock> || std::is_same_v<Block, FiveBlock>;
template <typename Block>
inline constexpr bool kHasTable =
    std::is_same_v<Block, NonlinearBlock> || std::is_same_v<Block, MicroBlock>;

template <Layout layout>
struct BlockTypeOf;
template <>
struct BlockTypeOf<Layout::kNibbleMin> {
  using Type = NibbleMinBlock;
};
template <>
struct BlockTypeOf<Layout::kNibble> {
  using Type = NibbleBlock;
};
template <>
struct BlockTypeOf<Layout::kByte> {
  using Type = ByteBlock;
};
template <>
struct BlockTypeOf<Layout::kFiveMin> {
  using Type = FiveMinBlock;
};
template <>
struct BlockTypeOf<Layout::kFive> {
  using Type = FiveBlock;
};
template <>
struct BlockTypeOf<Layout::kNonlinear> {
  using Type = NonlinearBlock;
};
template <>
struct BlockTypeOf<Layout::kMicro> {
  using Type = MicroBlock;
};
// The block of a layout that has blocks.
template <Layout layout>
using BlockOf = typename BlockTypeOf<layout>::Type;

// The integer of row r's K element k (0 … 31), signed: w = d · q, + m where there is one.
inline int nibble_at(const uint8_t (&q)[4][4 * kGroupRows], int64_t r, int64_t k) noexcept {
  const uint8_t byte = q[k % 16 / 4][4 * r + k % 4];
  return k < 16 ? byte & 15 : byte >> 4;
}
inline int fifth_bit_at(const uint8_t (&fifth)[4 * kGroupRows], int64_t r, int64_t k) noexcept {
  return fifth[4 * r + k % 4] >> (k / 4) & 1;
}
inline int integer_at(const NibbleMinBlock& block, int64_t r, int64_t k) noexcept {
  return nibble_at(block.q, r, k);
}
inline int integer_at(const NibbleBlock& block, int64_t r, int64_t k) noexcept {
  return nibble_at(block.q, r, k) - 8;
}
inline int integer_at(const ByteBlock& block, int64_t r, int64_t k) noexcept {
  return block.q[k / 4][4 * r + k % 4];
}
inline int integer_at(const FiveMinBlock& block, int64_t r, int64_t k) noexcept {
  return nibble_at(block.q, r, k) | fifth_bit_at(block.fifth, r, k) << 4;
}
inline int integer_at(const FiveBlock& block, int64_t r, int64_t k) noexcept {
  return (nibble_at(block.q, r, k) | fifth_bit_at(block.fifth, r, k) << 4) - 16;
}
inline int integer_at(const NonlinearBlock& block, int64_t r, int64_t k) noexcept {
  return kIQ4Values[nibble_at(block.q, r, k)];
}
inline int integer_at(const MicroBlock& block, int64_t r, int64_t k) noexcept {
  return kMXFP4Values[nibble_at(block.q, r, k)];
}

// Row r's scale, and what is added to each weight.
template <typename Block>
float scale_at(const Block& block, int64_t r) noexcept {
  if constexpr (std::is_same_v<Block, MicroBlock>) {
    return e8m0_half_to_f32(block.e[r]);
  } else {
    return f16_to_f32(block.d[r]);
  }
}
template <typename Block>
float min_at(const Block& block, int64_t r) noexcept {
  if constexpr (kHasMin<Block>) {
    return f16_to_f32(block.m[r]);
  } else {
    return 0;
  }
}

// w of row r's K element k (0 … 31).
template <typename Block>
float weight_at(const Block& block, int64_t r, int64_t k) noexcept {
  const float product = scale_at(block, r) * static_cast<float>(integer_at(block, r, k));
  return kHasMin<Block> ? product + min_at(block, r) : product;
}

}  // namespace cutaway::kernels
