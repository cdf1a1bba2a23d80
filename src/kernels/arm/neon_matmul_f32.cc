// Products of dequantised weights and f32 activations. A panel of a group's weights is dequantised
// once into a buffer that the first cache holds, then every column passes over it. A lane owns a
// row and adds fma by fma in K order; between panels the sums rest in y, which keeps their bits.
#include "kernels/arm/neon.h"
#include "kernels/arm/neon_super.h"
#include "kernels/arm/neon_unpack.h"
#include "kernels/blocks.h"

namespace cutaway::kernels::neon {
namespace {

constexpr int64_t kPanelK = 128;      // a multiple of kBlockK; 8 KiB of f32 per group
constexpr int64_t kColumnChunk = 96;  // a multiple of kTileColumns; x of a panel: 48 KiB
constexpr int64_t kCacheBytes = 256 * 1024;
constexpr int kVectors = kGroupRows / 4;
constexpr int kTileColumns = 4;  // × 4 vectors = 16 sums, 4 weights, 4 activations
constexpr int kAloneGroups = 2;
constexpr int64_t kTileGroups = 4;  // most groups at a time, when there are few columns

// Four consecutive weights of a plain layout as f32.
template <Layout layout>
CUTAWAY_INLINE float32x4_t load_weights(const uint8_t* group, int64_t index) noexcept {
  if constexpr (layout == Layout::kHalf) {
    return load_halves(reinterpret_cast<const uint16_t*>(group) + index);
  } else if constexpr (layout == Layout::kBrain) {
    const uint16x4_t bits = vld1_u16(reinterpret_cast<const uint16_t*>(group) + index);
    return vreinterpretq_f32_u32(vshll_n_u16(bits, 16));
  } else {
    return vld1q_f32(reinterpret_cast<const float*>(group) + index);
  }
}

// A panel is read in one short burst, so the memory's own prefetching hardly starts: while one is
// dequantised, the group's next one is asked for.
CUTAWAY_INLINE void prefetch(const uint8_t* begin, size_t bytes) noexcept {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(begin + i);
}

// K elements 4·i … of four rows, kSignedOffset more than they are, to out[0 … 3][16].
template <typename Block>
CUTAWAY_INLINE void dequantise_bytes(int8x16_t bytes, float32x4_t d, float32x4_t m,
                                     float* out) noexcept {
  const int32x4_t q = vreinterpretq_s32_s8(bytes);
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {  // byte i of each 32-bit lane
    const int32x4_t byte = vshrq_n_s32(vshlq_s32(q, vdupq_n_s32(24 - 8 * i)), 24);
    const int32x4_t value = vsubq_s32(byte, vdupq_n_s32(kSignedOffset<Block>));
    // d · q is exact in f32 (11 + 8 bits), so one rounding remains, as in ref.
    vst1q_f32(out + i * kGroupRows, vfmaq_f32(m, d, vcvtq_f32_s32(value)));
  }
}

template <int J, typename Block>
CUTAWAY_INLINE void dequantise_step(const Block& block, int64_t row, float32x4_t d, float32x4_t m,
                                    float* out) noexcept {
  const Step step = unpack<J>(block, row);
  dequantise_bytes<Block>(step.low, d, m, out + 4 * J * kGroupRows);
  dequantise_bytes<Block>(step.high, d, m, out + (16 + 4 * J) * kGroupRows);
}

// out[k][16] = the weights of the rows 4·v … of a block.
template <typename Block>
CUTAWAY_INLINE void dequantise_rows(const Block& block, int v, float* out) noexcept {
  const int64_t row = 4 * v;
  const float32x4_t d = scales_of(block, row);
  float32x4_t m = vdupq_n_f32(0);
  if constexpr (kHasMin<Block>) m = load_halves(block.m + row);
  out += row;
  dequantise_step<0>(block, row, d, m, out);
  dequantise_step<1>(block, row, d, m, out);
  dequantise_step<2>(block, row, d, m, out);
  dequantise_step<3>(block, row, d, m, out);
}

// out[k][16] = the weights of a group's 16 rows at K elements [k_begin, k_begin + k_count).
template <Layout layout>
CUTAWAY_INLINE void dequantise(const uint8_t* group, int64_t k_begin, int64_t k_count,
                               float* out) noexcept {
  if constexpr (!is_blocked(layout)) {
    for (int64_t i = 0; i < k_count * kGroupRows; i += 4) {
      vst1q_f32(out + i, load_weights<layout>(group, k_begin * kGroupRows + i));
    }
  } else if constexpr (is_super(layout)) {
    const auto* supers = reinterpret_cast<const SuperOf<layout>*>(group);
    for (int64_t p = k_begin / kBlockK; p < (k_begin + k_count) / kBlockK; ++p) {
      dequantise_part(supers[p / kParts], p % kParts, out);
      out += kBlockK * kGroupRows;
    }
  } else {
    using Block = BlockOf<layout>;
    const auto* block = reinterpret_cast<const Block*>(group) + k_begin / kBlockK;
    for (int64_t b = 0; b < k_count / kBlockK; ++b, ++block, out += kBlockK * kGroupRows) {
      for (int v = 0; v < kVectors; ++v) dequantise_rows(*block, v, out);
    }
  }
}

// Adds K element k of `C` columns, lane L of value[c] each, over `G` groups.
template <int L, int C, int G>
CUTAWAY_INLINE void add_element(const float* const (&w)[G], int64_t k,
                                const float32x4_t (&value)[C],
                                float32x4_t (&acc)[G][C][kVectors]) noexcept {
#pragma GCC unroll 16
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const float32x4_t weights = vld1q_f32(w[g] + k * kGroupRows + 4 * v);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        acc[g][c][v] = vfmaq_laneq_f32(acc[g][c][v], weights, value[c], L);
      }
    }
  }
}

// y[c][16·g + …] += Σ_k weights[g][k][…] · x[c][k] for `C` columns and `G` groups of `rows[g]`
// rows.
template <int C, int G>
CUTAWAY_INLINE void tile(const float* const* weights, int64_t k_count, const float* x,
                         int64_t x_stride, bool first, const int64_t* rows, float* y,
                         int64_t y_stride) noexcept {
  float32x4_t acc[G][C][kVectors];
#pragma GCC unroll 16
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        acc[g][c][v] =
            first ? vdupq_n_f32(0) : load_first(y + c * y_stride + 16 * g + 4 * v, rows[g] - 4 * v);
      }
    }
  }
  const float* w[G];
#pragma GCC unroll 16
  for (int g = 0; g < G; ++g) w[g] = weights[g];
  const float* column[C];
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) column[c] = x + c * x_stride;
  float32x4_t value[C];
  int64_t k = 0;
  for (; k + 4 <= k_count; k += 4) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) value[c] = vld1q_f32(column[c] + k);
    add_element<0>(w, k, value, acc);
    add_element<1>(w, k + 1, value, acc);
    add_element<2>(w, k + 2, value, acc);
    add_element<3>(w, k + 3, value, acc);
  }
  for (; k < k_count; ++k) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) value[c] = vdupq_n_f32(column[c][k]);
    add_element<0>(w, k, value, acc);
  }
#pragma GCC unroll 16
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        store_first(y + c * y_stride + 16 * g + 4 * v, rows[g] - 4 * v, acc[g][c][v]);
      }
    }
  }
}

// One column × G groups (g, g + apart, …) of plain weights, with no buffer between: what decode
// waits for is memory. Groups far apart make G long streams, which memory serves better than short
// ones.
template <Layout layout, int G>
CUTAWAY_INLINE void column_alone(const PackedMatrix& w, int64_t group_begin, int64_t g,
                                 int64_t apart, const float* x, float* y) noexcept {
  const uint8_t* group[G];
  float32x4_t acc[G][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < G; ++i) {
    group[i] = w.group(g + i * apart);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) acc[i][v] = vdupq_n_f32(0);
  }
  for (int64_t k = 0; k < w.cols; ++k) {
    const float32x4_t value = vdupq_n_f32(x[k]);
#pragma GCC unroll 16
    for (int i = 0; i < G; ++i) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const float32x4_t weights = load_weights<layout>(group[i], k * kGroupRows + 4 * v);
        acc[i][v] = vfmaq_f32(acc[i][v], weights, value);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < G; ++i) {
    const int64_t left = w.rows - (g + i * apart) * kGroupRows;
    float* to = y + (g + i * apart - group_begin) * kGroupRows;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) store_first(to + 4 * v, left - 4 * v, acc[i][v]);
  }
}

struct Panel {
  const float* weights[kTileGroups];
  int64_t rows[kTileGroups];
  int64_t k_count;
  bool first;
};

// One panel of G groups × all n columns, C at a time, then the rest.
template <int C, int G>
void columns(const Panel& panel, const float* x, int64_t x_stride, int64_t n, float* y,
             int64_t y_stride) noexcept {
  for (; n >= C; n -= C, x += C * x_stride, y += C * y_stride) {
    tile<C, G>(panel.weights, panel.k_count, x, x_stride, panel.first, panel.rows, y, y_stride);
  }
  if constexpr (C > 1) {
    if (n > 0) columns<C - 1, G>(panel, x, x_stride, n, y, y_stride);
  }
}

// The call's constants.
struct Product {
  const PackedMatrix& w;
  int64_t group_begin;  // whose rows begin at y
  const float* x;       // of the chunk's first column, as y
  int64_t x_stride, n;
  float* y;
  int64_t y_stride;
};

// Panel [k0, k0 + kPanelK) of `groups` (1, 2 or 4) groups from g on.
template <Layout layout>
CUTAWAY_INLINE void add_panel(const Product& p, int64_t g, int64_t groups, int64_t k0) noexcept {
  alignas(64) float buffer[kTileGroups][kPanelK * kGroupRows];
  // Of super-blocks a panel is half of one.
  constexpr int64_t kWhole = is_super(layout) ? kSuperK : kPanelK;
  [[maybe_unused]] const size_t panel_bytes =
      group_bytes(layout, kWhole) / static_cast<size_t>(kWhole / kPanelK);
  Panel panel;
  panel.k_count = p.w.cols - k0 < kPanelK ? p.w.cols - k0 : kPanelK;
  panel.first = k0 == 0;
  for (int64_t i = 0; i < groups; ++i) {
    const int64_t left = p.w.rows - (g + i) * kGroupRows;
    panel.rows[i] = left < kGroupRows ? left : kGroupRows;
    if constexpr (layout == Layout::kFloat) {
      panel.weights[i] = reinterpret_cast<const float*>(p.w.group(g + i)) + k0 * kGroupRows;
    } else {
      const uint8_t* group = p.w.group(g + i);
      prefetch(group + panel_bytes * static_cast<size_t>(k0 / kPanelK + 1), panel_bytes);
      dequantise<layout>(group, k0, panel.k_count, buffer[i]);
      panel.weights[i] = buffer[i];
    }
  }
  float* y = p.y + (g - p.group_begin) * kGroupRows;
  if (groups == 4) {
    columns<1, 4>(panel, p.x + k0, p.x_stride, p.n, y, p.y_stride);
  } else if (groups == 2) {
    columns<2, 2>(panel, p.x + k0, p.x_stride, p.n, y, p.y_stride);
  } else {
    columns<kTileColumns, 1>(panel, p.x + k0, p.x_stride, p.n, y, p.y_stride);
  }
}

}  // namespace

template <Layout layout>
void matmul_f32(const PackedMatrix& w, int64_t group_begin, int64_t group_end, const float* x,
                int64_t x_stride, int64_t n, float* y, int64_t y_stride) noexcept {
  if constexpr (!is_blocked(layout)) {
    if (n == 1) {
      const int64_t apart = (group_end - group_begin) / kAloneGroups;
      int64_t g = group_begin;
      for (; g < group_begin + apart; ++g) {
        column_alone<layout, kAloneGroups>(w, group_begin, g, apart, x, y);
      }
      for (g += apart * (kAloneGroups - 1); g < group_end; ++g) {
        column_alone<layout, 1>(w, group_begin, g, 0, x, y);
      }
      return;
    }
  }
  // Few columns leave too few independent sums to hide fma's latency: then several groups at once.
  const int64_t at_once = n == 1 ? kTileGroups : n <= 2 ? 2 : 1;
  for (int64_t c0 = 0; c0 < n; c0 += kColumnChunk) {
    const int64_t chunk = n - c0 < kColumnChunk ? n - c0 : kColumnChunk;
    const Product product = {w,     group_begin,       x + c0 * x_stride, x_stride,
                             chunk, y + c0 * y_stride, y_stride};
    // Group by group reads the weights as memory likes it, and needs the chunk's x again for each;
    // when that is too much for the second cache, panel by panel needs only a panel of it.
    const bool by_group = chunk * w.cols * static_cast<int64_t>(sizeof(float)) <= kCacheBytes;
    const int64_t panels = w.cols > 0 ? (w.cols + kPanelK - 1) / kPanelK : 1;
    for (int64_t outer = 0; outer < (by_group ? 1 : panels); ++outer) {
      for (int64_t g = group_begin; g < group_end;) {
        const int64_t groups = group_end - g >= at_once ? at_once : 1;
        for (int64_t inner = 0; inner < (by_group ? panels : 1); ++inner) {
          add_panel<layout>(product, g, groups, (outer + inner) * kPanelK);
        }
        g += groups;
      }
    }
  }
}

#define CUTAWAY_NEON_F32(layout)                                                                 \
  template void matmul_f32<layout>(const PackedMatrix&, int64_t, int64_t, const float*, int64_t, \
                                   int64_t, float*, int64_t) noexcept;
CUTAWAY_NEON_F32(Layout::kNibbleMin)
CUTAWAY_NEON_F32(Layout::kNibble)
CUTAWAY_NEON_F32(Layout::kByte)
CUTAWAY_NEON_F32(Layout::kHalf)
CUTAWAY_NEON_F32(Layout::kBrain)
CUTAWAY_NEON_F32(Layout::kFloat)
CUTAWAY_NEON_F32(Layout::kFiveMin)
CUTAWAY_NEON_F32(Layout::kFive)
CUTAWAY_NEON_F32(Layout::kNonlinear)
CUTAWAY_NEON_F32(Layout::kMicro)
CUTAWAY_NEON_F32(Layout::kSuper2)
CUTAWAY_NEON_F32(Layout::kSuper3)
CUTAWAY_NEON_F32(Layout::kSuper4)
CUTAWAY_NEON_F32(Layout::kSuper5)
CUTAWAY_NEON_F32(Layout::kSuper6)
CUTAWAY_NEON_F32(Layout::kSuperCode)
#undef CUTAWAY_NEON_F32

}  // namespace cutaway::kernels::neon
