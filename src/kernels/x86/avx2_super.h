// The weights of super-blocks in vectors of 8 rows × 4 K: half h of a group is rows 8·h …. Internal
// to kernels/x86.
#pragma once

#include "kernels/super_blocks.h"
#include "kernels/x86/avx2.h"

namespace cutaway::kernels::avx2 {

// v shifted so that bit `from` of each byte comes to bit `to`; the others are rubbish.
template <int from, int to>
CUTAWAY_INLINE __m256i move_bit(__m256i v) noexcept {
  if constexpr (to > from) return _mm256_slli_epi32(v, to - from);
  if constexpr (to < from) return _mm256_srli_epi32(v, from - to);
  return v;
}

// low | (high & mask), the mask in each byte.
template <int mask>
CUTAWAY_INLINE __m256i with_bits(__m256i low, __m256i high) noexcept {
  return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(mask)));
}

// The integers of step `step` (K elements 4·step + i) of half h of a part: unsigned, but the signed
// numbers themselves of SuperCode.
template <int step, typename Super>
CUTAWAY_INLINE __m256i integers(const typename Super::Part& part, int h) noexcept {
  if constexpr (std::is_same_v<Super, Super2> || std::is_same_v<Super, Super3>) {
    const __m256i pairs = load_bytes(part.q[step / 4] + 32 * h);
    const __m256i q = _mm256_and_si256(move_bit<2 * (step % 4), 0>(pairs), _mm256_set1_epi8(3));
    if constexpr (std::is_same_v<Super, Super2>) {
      return q;
    } else {
      return with_bits<4>(q, move_bit<step, 2>(load_bytes(part.high + 32 * h)));
    }
  } else {
    const __m256i nibbles = load_bytes(part.q[step % 4] + 32 * h);
    const __m256i q = _mm256_and_si256(move_bit<step / 4 * 4, 0>(nibbles), _mm256_set1_epi8(15));
    if constexpr (std::is_same_v<Super, SuperCode>) {
      const __m256i values = _mm256_broadcastsi128_si256(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIQ4Values)));
      return _mm256_shuffle_epi8(values, q);
    } else if constexpr (std::is_same_v<Super, Super5>) {
      return with_bits<16>(q, move_bit<step, 4>(load_bytes(part.high + 32 * h)));
    } else if constexpr (std::is_same_v<Super, Super6>) {
      return with_bits<48>(q,
                           move_bit<2 * (step % 4), 4>(load_bytes(part.high[step / 4] + 32 * h)));
    } else {
      return q;
    }
  }
}

CUTAWAY_INLINE __m256 load_scale(const uint16_t* d) noexcept { return load_halves(d); }
CUTAWAY_INLINE __m256 load_scale(const float* d) noexcept { return _mm256_loadu_ps(d); }

CUTAWAY_INLINE __m256i widen(const uint8_t* p) noexcept {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
CUTAWAY_INLINE __m256i widen(const int8_t* p) noexcept {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

// D of half h: scale s of the super-block.
template <typename Super>
CUTAWAY_INLINE __m256 scales(const Super& super, int64_t s, int h) noexcept {
  __m256i scale;
  if constexpr (std::is_same_v<Super, Super2>) {
    scale = _mm256_and_si256(widen(super.scale_min[s] + 8 * h), _mm256_set1_epi32(15));
  } else {
    scale = widen(super.scale[s] + 8 * h);
  }
  return _mm256_mul_ps(load_scale(super.d + 8 * h), _mm256_cvtepi32_ps(scale));
}

// M of half h.
template <typename Super>
CUTAWAY_INLINE __m256 minima(const Super& super, int64_t s, int h) noexcept {
  __m256i min;
  if constexpr (std::is_same_v<Super, Super2>) {
    min = _mm256_srli_epi32(widen(super.scale_min[s] + 8 * h), 4);
  } else {
    min = widen(super.min[s] + 8 * h);
  }
  return _mm256_mul_ps(load_scale(super.dmin + 8 * h), _mm256_cvtepi32_ps(min));
}

// The weights of the steps from `step` on of half h of part p to out[k][16].
template <int step, typename Super>
CUTAWAY_INLINE void dequantise_steps(const Super& super, int64_t p, int h, __m256 d, __m256 m,
                                     float* out) noexcept {
  if constexpr (step % (8 / Super::kScales) == 0) {
    constexpr int kScale = step * Super::kScales / 8;
    d = scales(super, p * Super::kScales + kScale, h);
    if constexpr (Super::kMin) m = minima(super, p * Super::kScales + kScale, h);
  }
  const __m256i q = integers<step, Super>(super.part[p], h);
  for (int i = 0; i < 4; ++i) {  // byte i of each 32-bit lane: K element 4·step + i
    __m256i whole;
    if constexpr (std::is_same_v<Super, SuperCode>) {
      whole = _mm256_srai_epi32(_mm256_sll_epi32(q, _mm_cvtsi32_si128(24 - 8 * i)), 24);
    } else {
      const __m256i byte =
          _mm256_and_si256(_mm256_srl_epi32(q, _mm_cvtsi32_si128(8 * i)), _mm256_set1_epi32(255));
      whole = _mm256_sub_epi32(byte, _mm256_set1_epi32(Super::kOffset));
    }
    const __m256 value = _mm256_cvtepi32_ps(whole);
    // D · q is exact, so one rounding remains, as in ref.
    const __m256 w = Super::kMin ? _mm256_fmsub_ps(d, value, m) : _mm256_mul_ps(d, value);
    _mm256_storeu_ps(out + (4 * step + i) * kGroupRows + 8 * h, w);
  }
  if constexpr (step < 7) dequantise_steps<step + 1>(super, p, h, d, m, out);
}

// One part's weights to out[k][16].
template <typename Super>
CUTAWAY_INLINE void dequantise_part(const Super& super, int64_t p, float* out) noexcept {
  for (int h = 0; h < 2; ++h) {
    dequantise_steps<0>(super, p, h, _mm256_setzero_ps(), _mm256_setzero_ps(), out);
  }
}

}  // namespace cutaway::kernels::avx2
