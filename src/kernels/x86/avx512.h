// The AVX-512 kernels (contracts in table.h) and what their files share. Internal to kernels/.
//
// Every kernel takes the steps of avx2's in the same order, so the bits are the same: rows, keys
// and elements have a lane each, and where lanes are summed, they are avx2's eight (or four).
//
// These files are compiled for AVX-512 F, BW, VL, DQ and VNNI (and what AVX2's are), the rest of
// the program is not: as in avx2.h, everything shared is a static inline of this header.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/blocks.h"
#include "kernels/exp_constants.h"
#include "kernels/table.h"

namespace cutaway::kernels::avx512 {

template <Layout layout>
void matmul_q8(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
               const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept;
template <Layout layout>
void matmul_f32(const PackedMatrix& w, int64_t group_begin, int64_t group_end, const float* x,
                int64_t x_stride, int64_t n, float* y, int64_t y_stride) noexcept;

// The layouts of super-blocks.
template <Layout layout>
void matmul_super_q8(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
                     const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept;

void quantize_q8(const float* x, int64_t x_stride, int64_t n, int64_t cols, int64_t first_block,
                 const Q8Output& out) noexcept;
float rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) noexcept;
void rope(float* x, const float* cos, const float* sin, int64_t n_rot, bool interleaved) noexcept;
void add(const float* a, const float* b, int64_t n, float* out) noexcept;
void silu_mul(const float* gate, const float* up, int64_t n, float* out) noexcept;
void gelu_mul(const float* gate, const float* up, int64_t n, float* out) noexcept;
void soft_cap(const float* x, float cap, int64_t n, float* out) noexcept;

void attention_tile(const AttentionTileArgs& args) noexcept;
void attention_merge(float tile_max, float tile_sum, const float* tile_out, int64_t d_v, float* max,
                     float* sum, float* out) noexcept;
void attention_finish(float sum, int64_t d_v, float* out) noexcept;
void attention_top(const float* weights, const float* factor, int64_t tiles, int64_t k,
                   TopKeys& out) noexcept;

#define CUTAWAY_INLINE static inline __attribute__((always_inline))

CUTAWAY_INLINE __m512i load_bytes(const void* p) noexcept { return _mm512_loadu_si512(p); }

// Sixteen f16 from memory as f32.
CUTAWAY_INLINE __m512 load_halves(const uint16_t* p) noexcept {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

CUTAWAY_INLINE __m512i broadcast_4_bytes(const void* p) noexcept {
  int32_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return _mm512_set1_epi32(bits);
}

// offset · Σ of the activations of a block, or of one half of it, in every lane. A multiplication
// of any kind waits for the two ports that the products need; with `shifts` there is none, which
// pays where unpacking leaves the other two ports time for it.
enum class Half { kLow, kHigh, kBoth };
template <int offset, Half half, bool shifts>
CUTAWAY_INLINE __m512i offset_times(const HalfSums* sum) noexcept {
  static_assert(offset > 0 && (offset & (offset - 1)) == 0);
  constexpr unsigned kShift = static_cast<unsigned>(__builtin_ctz(offset));
  const __m512i pair = broadcast_4_bytes(sum);
  if constexpr (!shifts) {
    constexpr int32_t kFactors =
        (half == Half::kHigh ? 0 : offset) + (half == Half::kLow ? 0 : offset << 16);
    return _mm512_madd_epi16(pair, _mm512_set1_epi32(kFactors));
  }
  const __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(pair, 16), 16 - kShift);
  if constexpr (half == Half::kLow) return low;
  const __m512i high = _mm512_slli_epi32(_mm512_srai_epi32(pair, 16), kShift);
  if constexpr (half == Half::kHigh) return high;
  return _mm512_add_epi32(low, high);
}

// Mask of the first `count` of 16 lanes (all of them from 16 on, none from 0 down).
CUTAWAY_INLINE __mmask16 first_lanes(int64_t count) noexcept {
  return count >= 16 ? 0xFFFF : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1);
}

// The first `count` of 16 floats; others are neither read nor written.
CUTAWAY_INLINE __m512 load_first(const float* p, int64_t count) noexcept {
  return _mm512_maskz_loadu_ps(first_lanes(count), p);
}
CUTAWAY_INLINE void store_first(float* p, int64_t count, __m512 v) noexcept {
  _mm512_mask_storeu_ps(p, first_lanes(count), v);
}

// Sum of eight lanes, as ((0+4)+(2+6)) + ((1+5)+(3+7)): avx2.h's.
CUTAWAY_INLINE float sum_lanes(__m256 v) noexcept {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  s = _mm_add_ss(s, _mm_movehdup_ps(s));
  return _mm_cvtss_f32(s);
}

// exp of math.cc on sixteen lanes, step by step, so that the bits are the same.
CUTAWAY_INLINE __m512 exp16(__m512 x) noexcept {
  // min and max give their second operand when one is NaN, so NaN passes.
  const __m512 bounded =
      _mm512_max_ps(_mm512_set1_ps(kExpLowest), _mm512_min_ps(_mm512_set1_ps(kExpHighest), x));
  const __m512 magic = _mm512_set1_ps(kRoundMagic);
  const __m512 n =
      _mm512_sub_ps(_mm512_add_ps(_mm512_mul_ps(bounded, _mm512_set1_ps(kLog2E)), magic), magic);
  const __m512 r = _mm512_sub_ps(_mm512_sub_ps(bounded, _mm512_mul_ps(n, _mm512_set1_ps(kLn2High))),
                                 _mm512_mul_ps(n, _mm512_set1_ps(kLn2Low)));
  __m512 p = _mm512_set1_ps(kExpP4);
  p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(kExpP3));
  p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(kExpP2));
  p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(kExpP1));
  p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(kExpP0));
  const __m512 y =
      _mm512_add_ps(_mm512_set1_ps(1.0f), _mm512_add_ps(r, _mm512_mul_ps(_mm512_mul_ps(r, r), p)));
  const __m512i whole = _mm512_cvtps_epi32(n);
  const __m512i half = _mm512_srai_epi32(whole, 1);
  const __m512i bias = _mm512_set1_epi32(127);
  const __m512 scale_1 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23));
  const __m512 scale_2 = _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(whole, half), bias), 23));
  const __m512 result = _mm512_mul_ps(_mm512_mul_ps(y, scale_1), scale_2);
  // The bounds themselves are in range, as in avx2.h.
  return _mm512_mask_mov_ps(result, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

// tanh of math.cc on sixteen lanes, likewise.
CUTAWAY_INLINE __m512 tanh16(__m512 x) noexcept {
  const __m512 sign_bit = _mm512_set1_ps(-0.0f);
  const __m512 magnitude = _mm512_andnot_ps(sign_bit, x);
  const __m512 z = _mm512_mul_ps(magnitude, magnitude);
  __m512 p = _mm512_set1_ps(kTanhT5);
  p = _mm512_add_ps(_mm512_mul_ps(p, z), _mm512_set1_ps(kTanhT4));
  p = _mm512_add_ps(_mm512_mul_ps(p, z), _mm512_set1_ps(kTanhT3));
  p = _mm512_add_ps(_mm512_mul_ps(p, z), _mm512_set1_ps(kTanhT2));
  p = _mm512_add_ps(_mm512_mul_ps(p, z), _mm512_set1_ps(kTanhT1));
  p = _mm512_add_ps(_mm512_mul_ps(p, z), _mm512_set1_ps(kTanhT0));
  const __m512 small = _mm512_add_ps(magnitude, _mm512_mul_ps(_mm512_mul_ps(magnitude, z), p));
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 two = _mm512_set1_ps(2.0f);
  const __m512 large = _mm512_sub_ps(
      one, _mm512_div_ps(two, _mm512_add_ps(exp16(_mm512_mul_ps(two, magnitude)), one)));
  const __mmask16 is_small = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(kTanhSmall), _CMP_LE_OQ);
  const __m512 y = _mm512_mask_mov_ps(large, is_small, small);
  return _mm512_or_ps(y, _mm512_and_ps(x, sign_bit));
}

}  // namespace cutaway::kernels::avx512
