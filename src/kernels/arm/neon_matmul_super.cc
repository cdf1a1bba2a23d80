// Products of super-blocks and 8-bit activations. A lane owns a row: per scale, 16 or 32 K, its
// integer sum is exact, then one fma in K order adds it, and one the minimum of each 32, whatever
// the number of columns.
//
// Compiled with -fno-schedule-insns, as neon_matmul_q8.cc is.
#include "kernels/arm/neon_q8.h"
#include "kernels/arm/neon_super.h"

namespace cutaway::kernels::neon {
namespace {

// sums[c][v] += the steps [step, end) of rows from + 4·v ….
template <int step, int end, typename Super, int C, int V>
CUTAWAY_INLINE void add_steps(const typename Super::Part& part, int64_t from, const Values<C>& x,
                              int32x4_t (&sums)[C][V]) noexcept {
#pragma GCC unroll 16
  for (int v = 0; v < V; ++v) {
    const int8x16_t w = integers<step, Super>(part, from + 4 * v);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      sums[c][v] = vdotq_laneq_s32(sums[c][v], w, x.half[step / 4][c], step % 4);
    }
  }
  if constexpr (step + 1 < end) add_steps<step + 1, end, Super>(part, from, x, sums);
}

// Scale s of part p: its integer sums, and their fma.
template <int s, typename Super, int C, int V>
CUTAWAY_INLINE void add_scale(const Super& super, int64_t p, int64_t from, const Columns& x,
                              const Values<C>& values, float32x4_t (&acc)[C][V]) noexcept {
  constexpr int kSteps = 8 / Super::kScales;
  int32x4_t sums[C][V];
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
    int32_t start = 0;
    if constexpr (kLeftOffset<Super> != 0) {
      const HalfSums sum = x.sum[c * x.block_stride];
      start = -kLeftOffset<Super> * (s == 0 ? sum.low : sum.high);
    }
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) sums[c][v] = vdupq_n_s32(start);
  }
  add_steps<s * kSteps, (s + 1) * kSteps, Super>(super.part[p], from, values, sums);
#pragma GCC unroll 16
  for (int v = 0; v < V; ++v) {
    const float32x4_t d = scales(super, p * Super::kScales + s, from + 4 * v);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const float32x4_t scaled = vmulq_n_f32(d, x.scale[c * x.block_stride]);
      acc[c][v] = vfmaq_f32(acc[c][v], scaled, vcvtq_f32_s32(sums[c][v]));
    }
  }
}

// The minimum of part p.
template <typename Super, int C, int V>
CUTAWAY_INLINE void subtract_minimum(const Super& super, int64_t p, int64_t from, const Columns& x,
                                     float32x4_t (&acc)[C][V]) noexcept {
#pragma GCC unroll 16
  for (int v = 0; v < V; ++v) {
    const int64_t row = from + 4 * v;
    if constexpr (std::is_same_v<Super, Super2>) {
      const int32x4_t low = min_integers(super, 2 * p, row);
      const int32x4_t high = min_integers(super, 2 * p + 1, row);
      const float32x4_t dmin = load_scale(super.dmin + row);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        const HalfSums sum = x.sum[c * x.block_stride];
        const int32x4_t both = vmlaq_n_s32(vmulq_n_s32(low, sum.low), high, sum.high);
        acc[c][v] = vfmsq_f32(acc[c][v], vmulq_n_f32(dmin, x.scale[c * x.block_stride]),
                              vcvtq_f32_s32(both));
      }
    } else {
      const float32x4_t m = minima(super, p, row);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        acc[c][v] = vfmsq_n_f32(acc[c][v], m, x.total[c * x.block_stride]);
      }
    }
  }
}

template <Layout layout>
struct SuperKernel {
  using Block = SuperOf<layout>;
  static constexpr int64_t kElements = kSuperK, kPieces = kParts;

  template <int C, int V, typename Ahead>
  CUTAWAY_INLINE void add(const Block& super, int64_t from, Columns& x, float32x4_t (&acc)[C][V],
                          const Ahead& ahead) noexcept {
    for (int64_t p = 0; p < kParts; ++p) {
      ahead(p);
      const Values<C> values = load_values<C>(x);
      add_scale<0>(super, p, from, x, values, acc);
      if constexpr (Block::kScales == 2) add_scale<1>(super, p, from, x, values, acc);
      if constexpr (Block::kMin) subtract_minimum(super, p, from, x, acc);
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

#define CUTAWAY_NEON_SUPER(layout)                                             \
  template void matmul_super_q8<layout>(const PackedMatrix&, int64_t, int64_t, \
                                        const Q8Activations&, int64_t, float*, int64_t) noexcept;
CUTAWAY_NEON_SUPER(Layout::kSuper2)
CUTAWAY_NEON_SUPER(Layout::kSuper3)
CUTAWAY_NEON_SUPER(Layout::kSuper4)
CUTAWAY_NEON_SUPER(Layout::kSuper5)
CUTAWAY_NEON_SUPER(Layout::kSuper6)
CUTAWAY_NEON_SUPER(Layout::kSuperCode)
#undef CUTAWAY_NEON_SUPER

}  // namespace cutaway::kernels::neon
