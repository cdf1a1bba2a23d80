// Part of a step of a block of 32 K as signed bytes: weights of 4 rows × 8 K elements,
// kSignedOffset<Block> more than they are. Internal to the NEON kernels.
#pragma once

#include "kernels/arm/neon.h"
#include "kernels/blocks.h"

namespace cutaway::kernels::neon {

// Tables hold signed values and small integers fit a signed byte as they are.
template <typename Block>
inline constexpr int kSignedOffset =
    kHasTable<Block> || std::is_same_v<Block, ByteBlock> ? 0 : Block::kOffset;

// low[4·r + i] is row `row` + r's K element 4·J + i, high[4·r + i] its K element 16 + 4·J + i.
struct Step {
  int8x16_t low, high;
};

template <int J, typename Block>
CUTAWAY_INLINE Step unpack(const Block& block, int64_t row) noexcept {
  if constexpr (std::is_same_v<Block, ByteBlock>) {
    return {vld1q_s8(block.q[J] + 4 * row), vld1q_s8(block.q[J + 4] + 4 * row)};
  } else {
    const uint8x16_t packed = vld1q_u8(block.q[J] + 4 * row);
    uint8x16_t low = vandq_u8(packed, vdupq_n_u8(15));
    uint8x16_t high = vshrq_n_u8(packed, 4);
    if constexpr (kHasTable<Block>) {
      const int8x16_t values = vld1q_s8(Block::kValues);
      return {vqtbl1q_s8(values, low), vqtbl1q_s8(values, high)};
    }
    if constexpr (kHasFifth<Block>) {  // bits J and 4 + J of the plane become bit 4
      const uint8x16_t fifth = vld1q_u8(block.fifth + 4 * row), sixteen = vdupq_n_u8(16);
      uint8x16_t high_bit = fifth;
      if constexpr (J > 0) high_bit = vshrq_n_u8(fifth, J > 0 ? J : 1);
      low = vorrq_u8(low, vandq_u8(vshlq_n_u8(fifth, 4 - J), sixteen));
      high = vorrq_u8(high, vandq_u8(high_bit, sixteen));
    }
    return {vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(high)};
  }
}

// The scales of the rows `row` ….
template <typename Block>
CUTAWAY_INLINE float32x4_t scales_of(const Block& block, int64_t row) noexcept {
  return load_halves(block.d + row);
}
CUTAWAY_INLINE float32x4_t scales_of(const MicroBlock& block, int64_t row) noexcept {
  // 2^(e − 128): from 2 on the exponent is e − 1; 0 and 1 are the subnormals 2^−128 and 2^−127.
  uint32_t bytes;
  std::memcpy(&bytes, block.e + row, sizeof(bytes));
  const uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(bytes)));
  const int32x4_t e = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(wide)));
  const int32x4_t normal = vshlq_n_s32(vsubq_s32(e, vdupq_n_s32(1)), 23);
  const int32x4_t subnormal = vshlq_s32(vdupq_n_s32(0x00200000), vminq_s32(e, vdupq_n_s32(2)));
  return vreinterpretq_f32_s32(vmaxq_s32(normal, subnormal));
}

}  // namespace cutaway::kernels::neon
