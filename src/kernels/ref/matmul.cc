#include <algorithm>

#include "kernels/blocks.h"
#include "kernels/ref/ref.h"

namespace cutaway::kernels::ref {
namespace {

// Adds one block's share to the 16 row sums: integers exactly, then one float step per block (two
// where there is a minimum), in K order. These steps, in this order, are the whole arithmetic of an
// output.
template <typename Block>
void add_block(const Block& block, const int8_t* x, float scale, float total, float* acc) noexcept {
  for (int64_t r = 0; r < kGroupRows; ++r) {
    int32_t dot = 0;
    for (int64_t k = 0; k < kBlockK; ++k) dot += integer_at(block, r, k) * x[k];
    acc[r] += scale_at(block, r) * scale * static_cast<float>(dot);
    if constexpr (kHasMin<Block>) acc[r] += min_at(block, r) * total;
  }
}

// The weights of the 16 rows at K element k of a group.
template <Layout layout>
void weights_at(const uint8_t* group, int64_t k, float* w) noexcept {
  for (int64_t r = 0; r < kGroupRows; ++r) {
    if constexpr (is_blocked(layout)) {
      const auto& block = reinterpret_cast<const BlockOf<layout>*>(group)[k / kBlockK];
      w[r] = weight_at(block, r, k % kBlockK);
    } else if constexpr (layout == Layout::kHalf) {
      w[r] = f16_to_f32(reinterpret_cast<const uint16_t*>(group)[k * kGroupRows + r]);
    } else if constexpr (layout == Layout::kBrain) {
      w[r] = bf16_to_f32(reinterpret_cast<const uint16_t*>(group)[k * kGroupRows + r]);
    } else {
      w[r] = reinterpret_cast<const float*>(group)[k * kGroupRows + r];
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
void matmul_q8(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
               const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept {
  const int64_t blocks = w.cols / kBlockK;
  for (int64_t g = group_begin; g < group_end; ++g) {
    const auto* group = reinterpret_cast<const BlockOf<layout>*>(w.group(g));
    for (int64_t c = 0; c < n; ++c) {
      float acc[kGroupRows] = {};
      for (int64_t b = 0; b < blocks; ++b) {
        add_block(group[b], x.q + c * x.cols + b * kBlockK, x.scale[c * blocks + b],
                  x.total[c * blocks + b], acc);
      }
      write_rows(w, g, group_begin, acc, y + c * y_stride);
    }
  }
}

template <Layout layout>
void matmul_f32(const PackedMatrix& w, int64_t group_begin, int64_t group_end, const float* x,
                int64_t x_stride, int64_t n, float* y, int64_t y_stride) noexcept {
  constexpr int64_t kColumns = 8;  // share each dequantised weight; every sum keeps its own order
  for (int64_t g = group_begin; g < group_end; ++g) {
    for (int64_t c0 = 0; c0 < n; c0 += kColumns) {
      const int64_t columns = std::min(kColumns, n - c0);
      float acc[kColumns][kGroupRows] = {};
      for (int64_t k = 0; k < w.cols; ++k) {
        float weights[kGroupRows];
        weights_at<layout>(w.group(g), k, weights);
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

#define CUTAWAY_REF_Q8(layout)                                                                 \
  template void matmul_q8<layout>(const PackedMatrix&, int64_t, int64_t, const Q8Activations&, \
                                  int64_t, float*, int64_t) noexcept;
#define CUTAWAY_REF_F32(layout)                                                                  \
  template void matmul_f32<layout>(const PackedMatrix&, int64_t, int64_t, const float*, int64_t, \
                                   int64_t, float*, int64_t) noexcept;
CUTAWAY_REF_Q8(Layout::kNibbleMin)
CUTAWAY_REF_Q8(Layout::kNibble)
CUTAWAY_REF_Q8(Layout::kByte)
CUTAWAY_REF_Q8(Layout::kFiveMin)
CUTAWAY_REF_Q8(Layout::kFive)
CUTAWAY_REF_Q8(Layout::kNonlinear)
CUTAWAY_REF_Q8(Layout::kMicro)
CUTAWAY_REF_F32(Layout::kNibbleMin)
CUTAWAY_REF_F32(Layout::kNibble)
CUTAWAY_REF_F32(Layout::kByte)
CUTAWAY_REF_F32(Layout::kHalf)
CUTAWAY_REF_F32(Layout::kBrain)
CUTAWAY_REF_F32(Layout::kFloat)
CUTAWAY_REF_F32(Layout::kFiveMin)
CUTAWAY_REF_F32(Layout::kFive)
CUTAWAY_REF_F32(Layout::kNonlinear)
CUTAWAY_REF_F32(Layout::kMicro)
#undef CUTAWAY_REF_Q8
#undef CUTAWAY_REF_F32

}  // namespace cutaway::kernels::ref
