// Products of super-blocks and 8-bit activations. A lane owns a row: per scale, 16 or 32 K, its
// integer sum is exact, then one fma in K order adds it, and one the minimum of each 32, whatever
// the number of columns.
#include "kernels/x86/avx2_q8.h"
#include "kernels/x86/avx2_super.h"

namespace cutaway::kernels::avx2 {
namespace {

// Steps whose sums of two products fit 16 bits together, for the largest integer of the weights:
// 2 · largest · 127 · steps < 2^15. Of SuperCode's |numbers| it is one.
template <typename Super>
constexpr int run_steps() noexcept {
  if (std::is_same_v<Super, Super4>) return 8;     // 30480
  if (std::is_same_v<Super, Super5>) return 4;     // 31496
  if (std::is_same_v<Super, Super6>) return 2;     // 32004
  if (std::is_same_v<Super, SuperCode>) return 1;  // 32258
  return 4;                                        // 7112 at most
}

// The products of pairs of K elements of steps [step, end), in 16 bits.
template <int step, int end, bool first, typename Super, int C>
CUTAWAY_INLINE void add_steps(const typename Super::Part& part, const Columns& x,
                              __m256i (&sums)[C][2]) noexcept {
  __m256i w0 = integers<step, Super>(part, 0);
  __m256i w1 = integers<step, Super>(part, 1);
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    const __m256i value = broadcast_4_bytes(x.q + c * x.q_stride + 4 * step);
    __m256i a0, a1;
    if constexpr (std::is_same_v<Super, SuperCode>) {
      a0 = _mm256_maddubs_epi16(_mm256_abs_epi8(w0), _mm256_sign_epi8(value, w0));
      a1 = _mm256_maddubs_epi16(_mm256_abs_epi8(w1), _mm256_sign_epi8(value, w1));
    } else {
      a0 = _mm256_maddubs_epi16(w0, value);
      a1 = _mm256_maddubs_epi16(w1, value);
    }
    sums[c][0] = first ? a0 : _mm256_add_epi16(sums[c][0], a0);
    sums[c][1] = first ? a1 : _mm256_add_epi16(sums[c][1], a1);
  }
  fence(sums, w0, w1);
  if constexpr (step + 1 < end) add_steps<step + 1, end, false, Super>(part, x, sums);
}

// The integer sums of steps [step, end), run by run.
template <int step, int end, bool first, typename Super, int C>
CUTAWAY_INLINE void add_runs(const typename Super::Part& part, const Columns& x,
                             __m256i (&sums)[C][2]) noexcept {
  constexpr int kRun = run_steps<Super>();
  __m256i run[C][2];
  add_steps<step, step + kRun, true, Super>(part, x, run);
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m256i wide = _mm256_madd_epi16(run[c][h], ones);
      sums[c][h] = first ? wide : _mm256_add_epi32(sums[c][h], wide);
    }
  }
  if constexpr (step + kRun < end) add_runs<step + kRun, end, false, Super>(part, x, sums);
}

// Scale s of part p: its integer sums, and their fma.
template <int s, typename Super, int C>
CUTAWAY_INLINE void add_scale(const Super& super, int64_t p, const Columns& x,
                              __m256 (&acc)[C][2]) noexcept {
  constexpr int kSteps = 8 / Super::kScales;
  constexpr bool kUnsigned = Super::kOffset != 0 && !std::is_same_v<Super, SuperCode>;
  // What made the integers unsigned: kOffset · Σ of the activations that this scale covers.
  constexpr int32_t kPair = s == 0 ? Super::kOffset : Super::kOffset << 16;
  __m256i sums[C][2];
  add_runs<s * kSteps, (s + 1) * kSteps, true, Super>(super.part[p], x, sums);
  const __m256 d[2] = {scales(super, p * Super::kScales + s, 0),
                       scales(super, p * Super::kScales + s, 1)};
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    const __m256 scale = _mm256_broadcast_ss(x.scale + c * x.block_stride);
    __m256i offset = _mm256_setzero_si256();
    if constexpr (kUnsigned) {
      offset = _mm256_madd_epi16(broadcast_4_bytes(x.sum + c * x.block_stride),
                                 _mm256_set1_epi32(kPair));
    }
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m256i dot = kUnsigned ? _mm256_sub_epi32(sums[c][h], offset) : sums[c][h];
      acc[c][h] = _mm256_fmadd_ps(_mm256_mul_ps(d[h], scale), _mm256_cvtepi32_ps(dot), acc[c][h]);
    }
  }
}

// The minimum of part p.
template <typename Super, int C>
CUTAWAY_INLINE void subtract_minimum(const Super& super, int64_t p, const Columns& x,
                                     __m256 (&acc)[C][2]) noexcept {
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    if constexpr (std::is_same_v<Super, Super2>) {
      const __m256i low = _mm256_srli_epi32(widen(super.scale_min[2 * p] + 8 * h), 4);
      const __m256i high = _mm256_srli_epi32(widen(super.scale_min[2 * p + 1] + 8 * h), 4);
      const __m256i pair = _mm256_or_si256(low, _mm256_slli_epi32(high, 16));
      const __m256 dmin = load_scale(super.dmin + 8 * h);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const __m256i sum = broadcast_4_bytes(x.sum + c * x.block_stride);
        const __m256 scale = _mm256_broadcast_ss(x.scale + c * x.block_stride);
        acc[c][h] = _mm256_fnmadd_ps(_mm256_mul_ps(dmin, scale),
                                     _mm256_cvtepi32_ps(_mm256_madd_epi16(pair, sum)), acc[c][h]);
      }
    } else {
      const __m256 m = minima(super, p, h);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const __m256 total = _mm256_broadcast_ss(x.total + c * x.block_stride);
        acc[c][h] = _mm256_fnmadd_ps(m, total, acc[c][h]);
      }
    }
  }
}

template <Layout layout>
struct SuperKernel {
  using Block = SuperOf<layout>;
  static constexpr int64_t kElements = kSuperK, kPieces = kParts;

  template <int C, typename Ahead>
  CUTAWAY_INLINE void add(const Block& super, Columns& x, __m256 (&acc)[C][2],
                          const Ahead& ahead) noexcept {
    for (int64_t p = 0; p < kParts; ++p) {
      ahead(p);
      add_scale<0>(super, p, x, acc);
      if constexpr (Block::kScales == 2) add_scale<1>(super, p, x, acc);
      if constexpr (Block::kMin) subtract_minimum(super, p, x, acc);
      next_block(x);
    }
  }
};

}  // namespace

template <Layout layout>
void matmul_super_q8(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
                     const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept {
  product<SuperKernel<layout>>(w, group_begin, group_end, x, n, y, y_stride);
}

#define CUTAWAY_AVX2_SUPER(layout)                                             \
  template void matmul_super_q8<layout>(const PackedMatrix&, int64_t, int64_t, \
                                        const Q8Activations&, int64_t, float*, int64_t) noexcept;
CUTAWAY_AVX2_SUPER(Layout::kSuper2)
CUTAWAY_AVX2_SUPER(Layout::kSuper3)
CUTAWAY_AVX2_SUPER(Layout::kSuper4)
CUTAWAY_AVX2_SUPER(Layout::kSuper5)
CUTAWAY_AVX2_SUPER(Layout::kSuper6)
CUTAWAY_AVX2_SUPER(Layout::kSuperCode)
#undef CUTAWAY_AVX2_SUPER

}  // namespace cutaway::kernels::avx2
