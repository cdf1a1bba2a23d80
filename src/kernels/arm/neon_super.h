// The weights of super-blocks in vectors of 4 rows × 4 K. Internal to kernels/arm.
#pragma once

#include "kernels/arm/neon.h"
#include "kernels/super_blocks.h"

namespace cutaway::kernels::neon {

// v shifted so that bit `from` of each byte comes to bit `to`.
template <int from, int to>
CUTAWAY_INLINE uint8x16_t move_bit(uint8x16_t v) noexcept {
  if constexpr (to > from) return vshlq_n_u8(v, to - from);
  if constexpr (to < from) return vshrq_n_u8(v, from - to);
  return v;
}

// low | (high & mask), the mask in each byte.
template <int mask>
CUTAWAY_INLINE uint8x16_t with_bits(uint8x16_t low, uint8x16_t high) noexcept {
  return vorrq_u8(low, vandq_u8(high, vdupq_n_u8(mask)));
}

// What integers() leaves in its numbers: they are q, but the signed numbers themselves of
// SuperCode.
template <typename Super>
inline constexpr int kLeftOffset = std::is_same_v<Super, SuperCode> ? 0 : Super::kOffset;

// The integers of step `step` (K elements 4·step + i) of rows from … from + 3.
template <int step, typename Super>
CUTAWAY_INLINE int8x16_t integers(const typename Super::Part& part, int64_t from) noexcept {
  const int64_t at = 4 * from;
  if constexpr (std::is_same_v<Super, Super2> || std::is_same_v<Super, Super3>) {
    const uint8x16_t pairs = vld1q_u8(part.q[step / 4] + at);
    uint8x16_t q = vandq_u8(move_bit<2 * (step % 4), 0>(pairs), vdupq_n_u8(3));
    if constexpr (std::is_same_v<Super, Super3>) {
      q = with_bits<4>(q, move_bit<step, 2>(vld1q_u8(part.high + at)));
    }
    return vreinterpretq_s8_u8(q);
  } else {
    const uint8x16_t nibbles = vld1q_u8(part.q[step % 4] + at);
    uint8x16_t q = vandq_u8(move_bit<step / 4 * 4, 0>(nibbles), vdupq_n_u8(15));
    if constexpr (std::is_same_v<Super, SuperCode>) {
      return vqtbl1q_s8(vld1q_s8(kIQ4Values), q);
    } else if constexpr (std::is_same_v<Super, Super5>) {
      q = with_bits<16>(q, move_bit<step, 4>(vld1q_u8(part.high + at)));
    } else if constexpr (std::is_same_v<Super, Super6>) {
      q = with_bits<48>(q, move_bit<2 * (step % 4), 4>(vld1q_u8(part.high[step / 4] + at)));
    }
    return vreinterpretq_s8_u8(q);
  }
}

CUTAWAY_INLINE float32x4_t load_scale(const uint16_t* d) noexcept { return load_halves(d); }
CUTAWAY_INLINE float32x4_t load_scale(const float* d) noexcept { return vld1q_f32(d); }

CUTAWAY_INLINE uint8x8_t four_bytes(const void* p) noexcept {
  uint32_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return vcreate_u8(bits);
}
CUTAWAY_INLINE int32x4_t widen(const uint8_t* p) noexcept {
  return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(four_bytes(p)))));
}
CUTAWAY_INLINE int32x4_t widen(const int8_t* p) noexcept {
  return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(four_bytes(p)))));
}

// D of rows from … from + 3: scale s of the super-block.
template <typename Super>
CUTAWAY_INLINE float32x4_t scales(const Super& super, int64_t s, int64_t from) noexcept {
  int32x4_t scale;
  if constexpr (std::is_same_v<Super, Super2>) {
    scale = vandq_s32(widen(super.scale_min[s] + from), vdupq_n_s32(15));
  } else {
    scale = widen(super.scale[s] + from);
  }
  return vmulq_f32(load_scale(super.d + from), vcvtq_f32_s32(scale));
}

// The small integer of M.
template <typename Super>
CUTAWAY_INLINE int32x4_t min_integers(const Super& super, int64_t s, int64_t from) noexcept {
  if constexpr (std::is_same_v<Super, Super2>) {
    return vshrq_n_s32(widen(super.scale_min[s] + from), 4);
  } else {
    return widen(super.min[s] + from);
  }
}
template <typename Super>
CUTAWAY_INLINE float32x4_t minima(const Super& super, int64_t s, int64_t from) noexcept {
  return vmulq_f32(load_scale(super.dmin + from), vcvtq_f32_s32(min_integers(super, s, from)));
}

// The weights of the steps from `step` on of rows from … from + 3 of part p to out[k][16].
template <int step, typename Super>
CUTAWAY_INLINE void dequantise_steps(const Super& super, int64_t p, int64_t from, float32x4_t d,
                                     float32x4_t m, float* out) noexcept {
  if constexpr (step % (8 / Super::kScales) == 0) {
    constexpr int kScale = step * Super::kScales / 8;
    d = scales(super, p * Super::kScales + kScale, from);
    if constexpr (Super::kMin) m = minima(super, p * Super::kScales + kScale, from);
  }
  const int32x4_t q = vreinterpretq_s32_s8(integers<step, Super>(super.part[p], from));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // byte i of each 32-bit lane: K element 4·step + i
    const int32x4_t byte = vshrq_n_s32(vshlq_s32(q, vdupq_n_s32(24 - 8 * i)), 24);
    const float32x4_t value = vcvtq_f32_s32(vsubq_s32(byte, vdupq_n_s32(kLeftOffset<Super>)));
    // D · q is exact, so one rounding remains, as in ref.
    const float32x4_t product = vmulq_f32(d, value);
    vst1q_f32(out + (4 * step + i) * kGroupRows + from,
              Super::kMin ? vsubq_f32(product, m) : product);
  }
  if constexpr (step < 7) dequantise_steps<step + 1>(super, p, from, d, m, out);
}

// One part's weights to out[k][16].
template <typename Super>
CUTAWAY_INLINE void dequantise_part(const Super& super, int64_t p, float* out) noexcept {
  for (int64_t from = 0; from < kGroupRows; from += 4) {
    dequantise_steps<0>(super, p, from, vdupq_n_f32(0), vdupq_n_f32(0), out);
  }
}

}  // namespace cutaway::kernels::neon
