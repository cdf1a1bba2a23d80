// Products of super-blocks and 8-bit activations. A lane owns a row: per scale, 16 or 32 K, its
// integer sum is exact, then one fma in K order adds it, and one the minimum of each 32, whatever
// the number of columns. The steps of avx2_matmul_super.cc, so the bits are the same.
#include "kernels/x86/avx512_q8.h"
#include "kernels/x86/avx512_super.h"

namespace cutaway::kernels::avx512 {
namespace {

// sums[c][g] += the steps [step, end) of part p.
template <int step, int end, typename Super, int C, int G>
CUTAWAY_INLINE void add_steps(const Super* const (&super)[G], int64_t p, const Columns& x,
                              __m512i (&sums)[C][G]) noexcept {
  __m512i w[G];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) w[g] = integers<step, Super>(super[g]->part[p]);
  add_products<C, G>(w, x, 4 * step, sums);
  fence(sums);
  if constexpr (step + 1 < end) add_steps<step + 1, end>(super, p, x, sums);
}

// Scale s of part p: its integer sums, and their fma.
template <int s, typename Super, int C, int G>
CUTAWAY_INLINE void add_scale(const Super* const (&super)[G], int64_t p, const Columns& x,
                              __m512 (&acc)[C][G]) noexcept {
  constexpr int kSteps = 8 / Super::kScales;
  constexpr Half kHalf = Super::kScales == 1 ? Half::kBoth : s == 0 ? Half::kLow : Half::kHigh;
  __m512i sums[C][G];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    __m512i start = _mm512_setzero_si512();
    if constexpr (Super::kOffset != 0) {  // what makes the integers unsigned is taken off first
      constexpr bool kShifts = std::is_same_v<Super, Super6>;
      start = _mm512_sub_epi32(
          start, offset_times<Super::kOffset, kHalf, kShifts>(x.sum + c * x.block_stride));
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) sums[c][g] = start;
  }
  add_steps<s * kSteps, (s + 1) * kSteps>(super, p, x, sums);
  __m512 d[G];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) d[g] = scales(*super[g], p * Super::kScales + s);
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    const __m512 scale = _mm512_set1_ps(x.scale[c * x.block_stride]);
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      acc[c][g] =
          _mm512_fmadd_ps(_mm512_mul_ps(d[g], scale), _mm512_cvtepi32_ps(sums[c][g]), acc[c][g]);
    }
  }
}

// The minimum of part p.
template <typename Super, int C, int G>
CUTAWAY_INLINE void subtract_minimum(const Super* const (&super)[G], int64_t p, const Columns& x,
                                     __m512 (&acc)[C][G]) noexcept {
  if constexpr (std::is_same_v<Super, Super2>) {
    __m512i pair[G];
    __m512 dmin[G];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const __m512i low = _mm512_srli_epi32(widen(super[g]->scale_min[2 * p]), 4);
      const __m512i high = _mm512_srli_epi32(widen(super[g]->scale_min[2 * p + 1]), 4);
      pair[g] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
      dmin[g] = load_scale(super[g]->dmin);
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const __m512i sum = broadcast_4_bytes(x.sum + c * x.block_stride);
      const __m512 scale = _mm512_set1_ps(x.scale[c * x.block_stride]);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        acc[c][g] =
            _mm512_fnmadd_ps(_mm512_mul_ps(dmin[g], scale),
                             _mm512_cvtepi32_ps(_mm512_madd_epi16(pair[g], sum)), acc[c][g]);
      }
    }
  } else {
    __m512 m[G];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) m[g] = minima(*super[g], p);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const __m512 total = _mm512_set1_ps(x.total[c * x.block_stride]);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) acc[c][g] = _mm512_fnmadd_ps(m[g], total, acc[c][g]);
    }
  }
}

template <Layout layout>
struct SuperKernel {
  using Block = SuperOf<layout>;
  static constexpr int64_t kElements = kSuperK, kPieces = kParts;

  template <int C, int G, typename Ahead>
  CUTAWAY_INLINE void add(const Block* const (&super)[G], Columns& x, __m512 (&acc)[C][G],
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

#define CUTAWAY_AVX512_SUPER(layout)                                           \
  template void matmul_super_q8<layout>(const PackedMatrix&, int64_t, int64_t, \
                                        const Q8Activations&, int64_t, float*, int64_t) noexcept;
CUTAWAY_AVX512_SUPER(Layout::kSuper2)
CUTAWAY_AVX512_SUPER(Layout::kSuper3)
CUTAWAY_AVX512_SUPER(Layout::kSuper4)
CUTAWAY_AVX512_SUPER(Layout::kSuper5)
CUTAWAY_AVX512_SUPER(Layout::kSuper6)
CUTAWAY_AVX512_SUPER(Layout::kSuperCode)
#undef CUTAWAY_AVX512_SUPER

}  // namespace cutaway::kernels::avx512
