// The weights of super-blocks in vectors of 16 rows × 4 K. Internal to kernels/x86.
#pragma once

#include "kernels/super_blocks.h"
#include "kernels/x86/avx512.h"

namespace cutaway::kernels::avx512 {

// v shifted so that bit `from` of each byte comes to bit `to`; the others are rubbish.
template <int from, int to>
CUTAWAY_INLINE __m512i move_bit(__m512i v) noexcept {
  if constexpr (to > from) return _mm512_slli_epi32(v, to - from);
  if constexpr (to < from) return _mm512_srli_epi32(v, from - to);
  return v;
}

// low | (high & mask), the mask in each byte.
template <int mask>
CUTAWAY_INLINE __m512i with_bits(__m512i low, __m512i high) noexcept {
  return _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi8(mask), 0xF8);
}

// The unsigned integers of step `step` (K elements 4·step + i) of a part.
template <int step, typename Super>
CUTAWAY_INLINE __m512i integers(const typename Super::Part& part) noexcept {
  if constexpr (std::is_same_v<Super, Super2> || std::is_same_v<Super, Super3>) {
    const __m512i pairs = load_bytes(part.q[step / 4]);
    const __m512i q = _mm512_and_si512(move_bit<2 * (step % 4), 0>(pairs), _mm512_set1_epi8(3));
    if constexpr (std::is_same_v<Super, Super2>) {
      return q;
    } else {
      return with_bits<4>(q, move_bit<step, 2>(load_bytes(part.high)));
    }
  } else {
    const __m512i mask = _mm512_set1_epi8(15);
    const __m512i q =
        _mm512_and_si512(move_bit<step / 4 * 4, 0>(load_bytes(part.q[step % 4])), mask);
    if constexpr (std::is_same_v<Super, SuperCode>) {
      const __m512i values = _mm512_broadcast_i32x4(_mm_add_epi8(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIQ4Values)), _mm_set1_epi8(-128)));
      return _mm512_shuffle_epi8(values, q);
    } else if constexpr (std::is_same_v<Super, Super5>) {
      return with_bits<16>(q, move_bit<step, 4>(load_bytes(part.high)));
    } else if constexpr (std::is_same_v<Super, Super6>) {
      return with_bits<48>(q, move_bit<2 * (step % 4), 4>(load_bytes(part.high[step / 4])));
    } else {
      return q;
    }
  }
}

CUTAWAY_INLINE __m512 load_scale(const uint16_t* d) noexcept { return load_halves(d); }
CUTAWAY_INLINE __m512 load_scale(const float* d) noexcept { return _mm512_loadu_ps(d); }

CUTAWAY_INLINE __m512i widen(const uint8_t* p) noexcept {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
CUTAWAY_INLINE __m512i widen(const int8_t* p) noexcept {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// D of 16 rows: scale s of the super-block.
template <typename Super>
CUTAWAY_INLINE __m512 scales(const Super& super, int64_t s) noexcept {
  __m512i scale;
  if constexpr (std::is_same_v<Super, Super2>) {
    scale = _mm512_and_si512(widen(super.scale_min[s]), _mm512_set1_epi32(15));
  } else {
    scale = widen(super.scale[s]);
  }
  return _mm512_mul_ps(load_scale(super.d), _mm512_cvtepi32_ps(scale));
}

// M of 16 rows.
template <typename Super>
CUTAWAY_INLINE __m512 minima(const Super& super, int64_t s) noexcept {
  __m512i min;
  if constexpr (std::is_same_v<Super, Super2>) {
    min = _mm512_srli_epi32(widen(super.scale_min[s]), 4);
  } else {
    min = widen(super.min[s]);
  }
  return _mm512_mul_ps(load_scale(super.dmin), _mm512_cvtepi32_ps(min));
}

// The weights of the steps from `step` on of part p to out[k][16].
template <int step, typename Super>
CUTAWAY_INLINE void dequantise_steps(const Super& super, int64_t p, __m512 d, __m512 m,
                                     float* out) noexcept {
  if constexpr (step % (8 / Super::kScales) == 0) {
    constexpr int kScale = step * Super::kScales / 8;
    d = scales(super, p * Super::kScales + kScale);
    if constexpr (Super::kMin) m = minima(super, p * Super::kScales + kScale);
  }
  const __m512i q = integers<step, Super>(super.part[p]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // byte i of each 32-bit lane: K element 4·step + i
    const __m512i byte = _mm512_and_si512(_mm512_srli_epi32(q, static_cast<unsigned>(8 * i)),
                                          _mm512_set1_epi32(255));
    const __m512 value =
        _mm512_cvtepi32_ps(_mm512_sub_epi32(byte, _mm512_set1_epi32(Super::kOffset)));
    // D · q is exact, so one rounding remains, as in ref.
    const __m512 w = Super::kMin ? _mm512_fmsub_ps(d, value, m) : _mm512_mul_ps(d, value);
    _mm512_storeu_ps(out + (4 * step + i) * kGroupRows, w);
  }
  if constexpr (step < 7) dequantise_steps<step + 1>(super, p, d, m, out);
}

// One part's weights to out[k][16].
template <typename Super>
CUTAWAY_INLINE void dequantise_part(const Super& super, int64_t p, float* out) noexcept {
  dequantise_steps<0>(super, p, _mm512_setzero_ps(), _mm512_setzero_ps(), out);
}

}  // namespace cutaway::kernels::avx512
