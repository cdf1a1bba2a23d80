#include "kernels/x86/avx2.h"

namespace cutaway::kernels::avx2 {

// The steps and the bits of ref::quantize_q8 (its comments say why a block that is not finite gets
// the scale NaN, and why tiny blocks are zeros).
CUTAWAY_INLINE void quantize_row(const float* x, int64_t blocks, int8_t* q, float* scale,
                                 HalfSums* sum, float* total) noexcept {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  for (int64_t b = 0; b < blocks; ++b, x += kBlockK, q += kBlockK) {
    __m256 v[4];
    __m256i most = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + 8 * i);
      // The bits of |x| order as integers do, with infinity and NaN above all numbers.
      most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    const int32_t bits = _mm_cvtsi128_si32(m);
    const float amax = _mm_cvtss_f32(_mm_castsi128_ps(m));
    if (bits >= 0x7F800000 || amax < 0x1p-119f) {
      const int32_t scale_bits = bits >= 0x7F800000 ? 0x7FC00000 : 0;
      std::memcpy(scale + b, &scale_bits, sizeof(scale_bits));
      std::memset(q, 0, kBlockK);
      sum[b] = {};
      total[b] = scale[b] * 0.0f;
      continue;
    }
    scale[b] = amax / 127.0f;
    const __m256 inverse = _mm256_set1_ps(127.0f / amax);
    __m256i whole[4];
    for (int i = 0; i < 4; ++i) whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    const __m256i pairs = _mm256_hadd_epi32(_mm256_add_epi32(whole[0], whole[1]),
                                            _mm256_add_epi32(whole[2], whole[3]));
    const __m128i quads =
        _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    const __m128i halves = _mm_hadd_epi32(quads, quads);
    const int32_t both = _mm_cvtsi128_si32(_mm_packs_epi32(halves, halves));
    std::memcpy(sum + b, &both, sizeof(both));
    total[b] = scale[b] * static_cast<float>(_mm_cvtsi128_si32(_mm_hadd_epi32(halves, halves)));
    // The packs work within 128-bit halves: the permutation puts the eight groups of 4 in order.
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]),
                                             _mm256_packs_epi32(whole[2], whole[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(bytes, order));
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
  __m256d squares[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()};
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 v = load_first(x + i, n - i);
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
    squares[0] = _mm256_fmadd_pd(low, low, squares[0]);
    squares[1] = _mm256_fmadd_pd(high, high, squares[1]);
  }
  const __m256d s = _mm256_add_pd(squares[0], squares[1]);
  __m128d t = _mm_add_pd(_mm256_castpd256_pd128(s), _mm256_extractf128_pd(s, 1));
  t = _mm_add_sd(t, _mm_unpackhi_pd(t, t));
  const double mean = _mm_cvtsd_f64(t) / static_cast<double>(n);
  const __m128d root = _mm_sqrt_sd(t, _mm_set_sd(mean + static_cast<double>(eps)));
  const auto scale = static_cast<float>(_mm_cvtsd_f64(root));
  const __m256 divisor = _mm256_set1_ps(scale);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 v = _mm256_div_ps(load_first(x + i, n - i), divisor);
    store_first(out + i, n - i, _mm256_mul_ps(v, load_first(weight + i, n - i)));
  }
  return scale;
}

void rope(float* x, const float* cos, const float* sin, int64_t n_rot, bool interleaved) noexcept {
  const int64_t half = n_rot / 2;
  int64_t i = 0;
  if (interleaved) {
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    for (; i + 4 <= half; i += 4) {
      const __m256 v = _mm256_loadu_ps(x + 2 * i);
      const __m256 swapped = _mm256_permute_ps(v, 0xB1);
      const __m256 c =
          _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cos + i)), twice);
      const __m256 s =
          _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sin + i)), twice);
      _mm256_storeu_ps(x + 2 * i, _mm256_addsub_ps(_mm256_mul_ps(v, c), _mm256_mul_ps(swapped, s)));
    }
  } else {
    for (; i + 8 <= half; i += 8) {
      const __m256 a = _mm256_loadu_ps(x + i);
      const __m256 b = _mm256_loadu_ps(x + i + half);
      const __m256 c = _mm256_loadu_ps(cos + i);
      const __m256 s = _mm256_loadu_ps(sin + i);
      _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
      _mm256_storeu_ps(x + i + half, _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
    }
  }
  for (; i < half; ++i) {
    float& a = x[interleaved ? 2 * i : i];
    float& b = x[interleaved ? 2 * i + 1 : i + half];
    const float rotated_a = a * cos[i] - b * sin[i];
    const float rotated_b = b * cos[i] + a * sin[i];
    a = rotated_a;
    b = rotated_b;
  }
}

void add(const float* a, const float* b, int64_t n, float* out) noexcept {
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 sum = _mm256_add_ps(load_first(a + i, n - i), load_first(b + i, n - i));
    store_first(out + i, n - i, sum);
  }
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) noexcept {
  const __m256 one = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 g = load_first(gate + i, n - i);
    const __m256 minus = _mm256_xor_ps(g, _mm256_set1_ps(-0.0f));
    const __m256 silu = _mm256_div_ps(g, _mm256_add_ps(one, exp8(minus)));
    store_first(out + i, n - i, _mm256_mul_ps(silu, load_first(up + i, n - i)));
  }
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* out) noexcept {
  const __m256 one = _mm256_set1_ps(1.0f), half = _mm256_set1_ps(0.5f);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 x = load_first(gate + i, n - i);
    const __m256 cubic = _mm256_add_ps(_mm256_set1_ps(kGelu1),
                                       _mm256_mul_ps(_mm256_set1_ps(kGelu3), _mm256_mul_ps(x, x)));
    const __m256 gelu =
        _mm256_mul_ps(_mm256_mul_ps(half, x), _mm256_add_ps(one, tanh8(_mm256_mul_ps(x, cubic))));
    store_first(out + i, n - i,
                up == nullptr ? gelu : _mm256_mul_ps(gelu, load_first(up + i, n - i)));
  }
}

void soft_cap(const float* x, float cap, int64_t n, float* out) noexcept {
  const __m256 caps = _mm256_set1_ps(cap);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 y = tanh8(_mm256_div_ps(load_first(x + i, n - i), caps));
    store_first(out + i, n - i, _mm256_mul_ps(caps, y));
  }
}

}  // namespace cutaway::kernels::avx2
