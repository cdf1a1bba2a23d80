// Products of the layouts of super-blocks: super_blocks.h says what they hold.
#include <algorithm>

#include "kernels/ref/ref.h"
#include "kernels/super_blocks.h"

namespace cutaway::kernels::ref {
namespace {

// Adds the share of one part, 32 K, to the 16 row sums: integers exactly, then one float step for
// each scale, in K order, then one for the minimum. These steps, in this order, are the whole
// arithmetic of an output. All integers stay below 2^24, so that they are exact as floats: at most
// 16 · 32 · 127 or 32 · 127 · 127, and 2 · 15 · 16 · 127 of the minima of Q2_K, whose two take one
// step.
template <typename Super>
void add_part(const Super& super, int64_t p, const int8_t* x, float scale, HalfSums sum,
              float total, float* acc) noexcept {
  constexpr int64_t kElements = kBlockK / Super::kScales;
  for (int64_t r = 0; r < kGroupRows; ++r) {
    for (int64_t s = 0; s < Super::kScales; ++s) {
      int32_t dot = 0;
      for (int64_t k = s * kElements; k < (s + 1) * kElements; ++k) {
        dot += integer_at(super, r, p * kBlockK + k) * x[k];
      }
      acc[r] += scale_at(super, r, p * Super::kScales + s) * scale * static_cast<float>(dot);
    }
    if constexpr (std::is_same_v<Super, Super2>) {
      const int32_t minima = (super.scale_min[2 * p][r] >> 4) * sum.low +
                             (super.scale_min[2 * p + 1][r] >> 4) * sum.high;
      acc[r] -= f16_to_f32(super.dmin[r]) * scale * static_cast<float>(minima);
    } else if constexpr (Super::kMin) {
      acc[r] -= min_at(super, r, p) * total;
    }
  }
}

// Rows of group g to y, where row 0 of group_begin goes to y[0].
void write_rows(const PackedMatrix& w, int64_t g, int64_t group_begin, const float* acc,
                float* y) noexcept {
  std::copy_n(acc, std::min(kGroupRows, w.rows - g * kGroupRows),
              y + (g - group_begin) * kGroupRows);
}

}  // namespace

template <Layout layout>
void matmul_super_q8(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
                     const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept {
  const int64_t blocks = w.cols / kBlockK;
  for (int64_t g = group_begin; g < group_end; ++g) {
    const auto* group = reinterpret_cast<const SuperOf<layout>*>(w.group(g));
    for (int64_t c = 0; c < n; ++c) {
      float acc[kGroupRows] = {};
      for (int64_t b = 0; b < blocks; ++b) {
        add_part(group[b / kParts], b % kParts, x.q + c * x.cols + b * kBlockK,
                 x.scale[c * blocks + b], x.sum[c * blocks + b], x.total[c * blocks + b], acc);
      }
      write_rows(w, g, group_begin, acc, y + c * y_stride);
    }
  }
}

template <Layout layout>
void matmul_super_f32(const PackedMatrix& w, int64_t group_begin, int64_t group_end, const float* x,
                      int64_t x_stride, int64_t n, float* y, int64_t y_stride) noexcept {
  constexpr int64_t kColumns = 8;  // share each dequantised weight; every sum keeps its own order
  for (int64_t g = group_begin; g < group_end; ++g) {
    const auto* group = reinterpret_cast<const SuperOf<layout>*>(w.group(g));
    for (int64_t c0 = 0; c0 < n; c0 += kColumns) {
      const int64_t columns = std::min(kColumns, n - c0);
      float acc[kColumns][kGroupRows] = {};
      for (int64_t k = 0; k < w.cols; ++k) {
        float weights[kGroupRows];
        for (int64_t r = 0; r < kGroupRows; ++r) {
          weights[r] = weight_at(group[k / kSuperK], r, k % kSuperK);
        }
        for (int64_t c = 0; c < columns; ++c) {
          const float value = x[(c0 + c) * x_stride + k];
          for (int64_t r = 0; r < kGroupRows; ++r) acc[c][r] += weights[r] * value;
        }
      }
      for (int64_t c = 0; c < columns; ++c) {
        write_rows(w, g, group_begin, acc[c], y + (c0 + c) * y_stride);
      }
    }
  }
}

#define CUTAWAY_REF_SUPER(layout)                                                                 \
  template void matmul_super_q8<layout>(const PackedMatrix&, int64_t, int64_t,                    \
                                        const Q8Activations&, int64_t, float*, int64_t) noexcept; \
  template void matmul_super_f32<layout>(const PackedMatrix&, int64_t, int64_t, const float*,     \
                                         int64_t, int64_t, float*, int64_t) noexcept;
CUTAWAY_REF_SUPER(Layout::kSuper2)
CUTAWAY_REF_SUPER(Layout::kSuper3)
CUTAWAY_REF_SUPER(Layout::kSuper4)
CUTAWAY_REF_SUPER(Layout::kSuper5)
CUTAWAY_REF_SUPER(Layout::kSuper6)
CUTAWAY_REF_SUPER(Layout::kSuperCode)
#undef CUTAWAY_REF_SUPER

}  // namespace cutaway::kernels::ref
