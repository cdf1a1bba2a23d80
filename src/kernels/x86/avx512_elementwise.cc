// The steps of avx2_elementwise.cc on wider vectors, and its bits.
#include "kernels/x86/avx512.h"

namespace cutaway::kernels::avx512 {

// The steps and the bits of ref::quantize_q8 (its comments say why a block that is not finite gets
// the scale NaN, and why tiny blocks are zeros).
CUTAWAY_INLINE void quantize_row(const float* x, int64_t blocks, int8_t* q, float* scale,
                                 HalfSums* sum, float* total) noexcept {
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  for (int64_t b = 0; b < blocks; ++b, x += kBlockK, q += kBlockK) {
    const __m512 v0 = _mm512_loadu_ps(x), v1 = _mm512_loadu_ps(x + 16);
    // The bits of |x| order as integers do, with infinity and NaN above all numbers.
    const int32_t bits = _mm512_reduce_max_epi32(
        _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(v0), magnitude),
                         _mm512_and_si512(_mm512_castps_si512(v1), magnitude)));
    float amax;
    std::memcpy(&amax, &bits, sizeof(amax));
    if (bits >= 0x7F800000 || amax < 0x1p-119f) {
      const int32_t scale_bits = bits >= 0x7F800000 ? 0x7FC00000 : 0;
      std::memcpy(scale + b, &scale_bits, sizeof(scale_bits));
      std::memset(q, 0, kBlockK);
      sum[b] = {};
      total[b] = scale[b] * 0.0f;
      continue;
    }
    scale[b] = amax / 127.0f;
    const __m512 inverse = _mm512_set1_ps(127.0f / amax);
    const __m512i whole0 = _mm512_cvtps_epi32(_mm512_mul_ps(v0, inverse));
    const __m512i whole1 = _mm512_cvtps_epi32(_mm512_mul_ps(v1, inverse));
    const __m256i pairs = _mm256_hadd_epi32(
        _mm256_add_epi32(_mm512_castsi512_si256(whole0), _mm512_extracti64x4_epi64(whole0, 1)),
        _mm256_add_epi32(_mm512_castsi512_si256(whole1), _mm512_extracti64x4_epi64(whole1, 1)));
    const __m128i quads =
        _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    const __m128i halves = _mm_hadd_epi32(quads, quads);
    const int32_t both = _mm_cvtsi128_si32(_mm_packs_epi32(halves, halves));
    std::memcpy(sum + b, &both, sizeof(both));
    total[b] = scale[b] * static_cast<float>(_mm_cvtsi128_si32(_mm_hadd_epi32(halves, halves)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtsepi32_epi8(whole0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm512_cvtsepi32_epi8(whole1));
  }
}

void quantize_q8(const float* x, int64_t x_stride, int64_t n, int64_t cols, int64_t first_block,
                 const Q8Output& out) noexcept {
  for (int64_t c = 0; c < n; ++c) {
    const int64_t first = c * (out.cols / kBlockK) + first_block;
    quantize_row(x + c * x_stride, cols / kBlockK, out.q + first * kBlockK, out.scale + first,
                 out.sum + first, out.total + first);
  }
}

float rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) noexcept {
  __m512d squares = _mm512_setzero_pd();
  for (int64_t i = 0; i < n; i += 8) {
    const auto lanes = static_cast<__mmask8>(first_lanes(n - i));
    const __m512d v = _mm512_cvtps_pd(_mm256_maskz_loadu_ps(lanes, x + i));
    squares = _mm512_fmadd_pd(v, v, squares);
  }
  const __m256d s =
      _mm256_add_pd(_mm512_castpd512_pd256(squares), _mm512_extractf64x4_pd(squares, 1));
  __m128d t = _mm_add_pd(_mm256_castpd256_pd128(s), _mm256_extractf128_pd(s, 1));
  t = _mm_add_sd(t, _mm_unpackhi_pd(t, t));
  const double mean = _mm_cvtsd_f64(t) / static_cast<double>(n);
  const __m128d root = _mm_sqrt_sd(t, _mm_set_sd(mean + static_cast<double>(eps)));
  const auto scale = static_cast<float>(_mm_cvtsd_f64(root));
  const __m512 divisor = _mm512_set1_ps(scale);
  for (int64_t i = 0; i < n; i += 16) {
    const __m512 v = _mm512_div_ps(load_first(x + i, n - i), divisor);
    store_first(out + i, n - i, _mm512_mul_ps(v, load_first(weight + i, n - i)));
  }
  return scale;
}

void rope(float* x, const float* cos, const float* sin, int64_t n_rot, bool interleaved) noexcept {
  const int64_t half = n_rot / 2;
  if (interleaved) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512 even_minus = _mm512_castsi512_ps(_mm512_set1_epi64(0x80000000));
    for (int64_t i = 0; i < half; i += 8) {
      const auto pairs = static_cast<__mmask8>(first_lanes(half - i));
      const __mmask16 lanes = first_lanes(2 * (half - i));
      const __m512 v = _mm512_maskz_loadu_ps(lanes, x + 2 * i);
      const __m512 swapped = _mm512_permute_ps(v, 0xB1);
      const __m512 c = _mm512_permutexvar_ps(
          twice, _mm512_castps256_ps512(_mm256_maskz_loadu_ps(pairs, cos + i)));
      const __m512 s = _mm512_permutexvar_ps(
          twice, _mm512_castps256_ps512(_mm256_maskz_loadu_ps(pairs, sin + i)));
      // a·cos − b·sin in even lanes, b·cos + a·sin in odd ones.
      const __m512 crossed = _mm512_xor_ps(_mm512_mul_ps(swapped, s), even_minus);
      _mm512_mask_storeu_ps(x + 2 * i, lanes, _mm512_add_ps(_mm512_mul_ps(v, c), crossed));
    }
    return;
  }
  for (int64_t i = 0; i < half; i += 16) {
    const __mmask16 lanes = first_lanes(half - i);
    const __m512 a = _mm512_maskz_loadu_ps(lanes, x + i);
    const __m512 b = _mm512_maskz_loadu_ps(lanes, x + i + half);
    const __m512 c = _mm512_maskz_loadu_ps(lanes, cos + i);
    const __m512 s = _mm512_maskz_loadu_ps(lanes, sin + i);
    const __m512 rotated_a = _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s));
    const __m512 rotated_b = _mm512_add_ps(_mm512_mul_ps(b, c), _mm512_mul_ps(a, s));
    _mm512_mask_storeu_ps(x + i, lanes, rotated_a);
    _mm512_mask_storeu_ps(x + i + half, lanes, rotated_b);
  }
}

void add(const float* a, const float* b, int64_t n, float* out) noexcept {
  for (int64_t i = 0; i < n; i += 16) {
    store_first(out + i, n - i, _mm512_add_ps(load_first(a + i, n - i), load_first(b + i, n - i)));
  }
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) noexcept {
  const __m512 one = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < n; i += 16) {
    const __m512 g = load_first(gate + i, n - i);
    const __m512 minus = _mm512_xor_ps(g, _mm512_set1_ps(-0.0f));
    const __m512 silu = _mm512_div_ps(g, _mm512_add_ps(one, exp16(minus)));
    store_first(out + i, n - i, _mm512_mul_ps(silu, load_first(up + i, n - i)));
  }
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* out) noexcept {
  const __m512 one = _mm512_set1_ps(1.0f), half = _mm512_set1_ps(0.5f);
  for (int64_t i = 0; i < n; i += 16) {
    const __m512 x = load_first(gate + i, n - i);
    const __m512 cubic = _mm512_add_ps(_mm512_set1_ps(kGelu1),
                                       _mm512_mul_ps(_mm512_set1_ps(kGelu3), _mm512_mul_ps(x, x)));
    const __m512 gelu =
        _mm512_mul_ps(_mm512_mul_ps(half, x), _mm512_add_ps(one, tanh16(_mm512_mul_ps(x, cubic))));
    store_first(out + i, n - i,
                up == nullptr ? gelu : _mm512_mul_ps(gelu, load_first(up + i, n - i)));
  }
}

void soft_cap(const float* x, float cap, int64_t n, float* out) noexcept {
  const __m512 caps = _mm512_set1_ps(cap);
  for (int64_t i = 0; i < n; i += 16) {
    const __m512 y = tanh16(_mm512_div_ps(load_first(x + i, n - i), caps));
    store_first(out + i, n - i, _mm512_mul_ps(caps, y));
  }
}

}  // namespace cutaway::kernels::avx512
