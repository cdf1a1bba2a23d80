// The AVX2 kernels (contracts in table.h) and what their files share. Internal to kernels/.
//
// These files are compiled for AVX2, FMA and F16C, the rest of the program is not. So everything
// shared is a static inline of this header: an inline function of the standard library that the
// linker took from here would crash a processor without AVX2.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/exp_constants.h"
#include "kernels/table.h"

namespace cutaway::kernels::avx2 {

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

void store_key(KvType type, const float* key, int64_t d, int64_t p, void* k) noexcept;
void store_value(KvType type, const float* value, int64_t d, int64_t p, void* v) noexcept;
void attention_tile(const AttentionTileArgs& args) noexcept;
void attention_merge(float tile_max, float tile_sum, const float* tile_out, int64_t d_v, float* max,
                     float* sum, float* out) noexcept;
void attention_finish(float sum, int64_t d_v, float* out) noexcept;
void attention_top(const float* weights, const float* factor, int64_t tiles, int64_t k,
                   TopKeys& out) noexcept;

#define CUTAWAY_INLINE static inline __attribute__((always_inline))
#define CUTAWAY_INLINE_MEMBER inline __attribute__((always_inline))

CUTAWAY_INLINE __m256i load_bytes(const void* p) noexcept {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

// Eight f16 from memory as f32.
CUTAWAY_INLINE __m256 load_halves(const uint16_t* p) noexcept {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

CUTAWAY_INLINE __m256i broadcast_4_bytes(const void* p) noexcept {
  int32_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return _mm256_set1_epi32(bits);
}

// Mask of the first `count` of 8 lanes (all of them from 8 on, none from 0 down).
CUTAWAY_INLINE __m256i first_lanes(int64_t count) noexcept {
  const auto n = static_cast<int32_t>(count > 8 ? 8 : count);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// The first `count` of 8 floats; others are neither read nor written.
CUTAWAY_INLINE __m256 load_first(const float* p, int64_t count) noexcept {
  return count >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, first_lanes(count));
}
CUTAWAY_INLINE void store_first(float* p, int64_t count, __m256 v) noexcept {
  if (count >= 8) {
    _mm256_storeu_ps(p, v);
  } else {
    _mm256_maskstore_ps(p, first_lanes(count), v);
  }
}

// exp of math.cc on eight lanes, step by step, so that the bits are the same.
CUTAWAY_INLINE __m256 exp8(__m256 x) noexcept {
  // min and max give their second operand when one is NaN, so NaN passes.
  const __m256 bounded =
      _mm256_max_ps(_mm256_set1_ps(kExpLowest), _mm256_min_ps(_mm256_set1_ps(kExpHighest), x));
  const __m256 magic = _mm256_set1_ps(kRoundMagic);
  const __m256 n =
      _mm256_sub_ps(_mm256_add_ps(_mm256_mul_ps(bounded, _mm256_set1_ps(kLog2E)), magic), magic);
  const __m256 r = _mm256_sub_ps(_mm256_sub_ps(bounded, _mm256_mul_ps(n, _mm256_set1_ps(kLn2High))),
                                 _mm256_mul_ps(n, _mm256_set1_ps(kLn2Low)));
  __m256 p = _mm256_set1_ps(kExpP4);
  p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(kExpP3));
  p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(kExpP2));
  p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(kExpP1));
  p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(kExpP0));
  const __m256 y =
      _mm256_add_ps(_mm256_set1_ps(1.0f), _mm256_add_ps(r, _mm256_mul_ps(_mm256_mul_ps(r, r), p)));
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 scale_1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 scale_2 = _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23));
  const __m256 result = _mm256_mul_ps(_mm256_mul_ps(y, scale_1), scale_2);
  // The bounds themselves are in range: 89 overflows to +inf, −104 is below half of the smallest
  // subnormal and rounds to 0.
  return _mm256_blendv_ps(result, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

// tanh of math.cc on eight lanes, likewise.
CUTAWAY_INLINE __m256 tanh8(__m256 x) noexcept {
  const __m256 sign_bit = _mm256_set1_ps(-0.0f);
  const __m256 magnitude = _mm256_andnot_ps(sign_bit, x);
  const __m256 z = _mm256_mul_ps(magnitude, magnitude);
  __m256 p = _mm256_set1_ps(kTanhT5);
  p = _mm256_add_ps(_mm256_mul_ps(p, z), _mm256_set1_ps(kTanhT4));
  p = _mm256_add_ps(_mm256_mul_ps(p, z), _mm256_set1_ps(kTanhT3));
  p = _mm256_add_ps(_mm256_mul_ps(p, z), _mm256_set1_ps(kTanhT2));
  p = _mm256_add_ps(_mm256_mul_ps(p, z), _mm256_set1_ps(kTanhT1));
  p = _mm256_add_ps(_mm256_mul_ps(p, z), _mm256_set1_ps(kTanhT0));
  const __m256 small = _mm256_add_ps(magnitude, _mm256_mul_ps(_mm256_mul_ps(magnitude, z), p));
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 two = _mm256_set1_ps(2.0f);
  const __m256 large = _mm256_sub_ps(
      one, _mm256_div_ps(two, _mm256_add_ps(exp8(_mm256_mul_ps(two, magnitude)), one)));
  const __m256 is_small = _mm256_cmp_ps(magnitude, _mm256_set1_ps(kTanhSmall), _CMP_LE_OQ);
  const __m256 y = _mm256_blendv_ps(large, small, is_small);
  return _mm256_or_ps(y, _mm256_and_ps(x, sign_bit));
}

// Sum of eight lanes, as ((0+4)+(2+6)) + ((1+5)+(3+7)).
CUTAWAY_INLINE float sum_lanes(__m256 v) noexcept {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  s = _mm_add_ss(s, _mm_movehdup_ps(s));
  return _mm_cvtss_f32(s);
}

CUTAWAY_INLINE float max_lanes(__m256 v) noexcept {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  m = _mm_max_ss(m, _mm_movehdup_ps(m));
  return _mm_cvtss_f32(m);
}

}  // namespace cutaway::kernels::avx2
