// Products of dequantised weights and f32 activations. A panel of a group's weights is dequantised
// once into a buffer that the first cache holds, then every column passes over it. A lane owns a
// row and adds fma by fma in K order; between panels the sums rest in y, which keeps their bits.
#include "kernels/blocks.h"
#include "kernels/x86/avx2.h"
#include "kernels/x86/avx2_super.h"
#include "kernels/x86/avx2_unpack.h"

namespace cutaway::kernels::avx2 {
namespace {

constexpr int64_t kPanelK = 128;      // a multiple of kBlockK; 8 KiB of f32 per group
constexpr int64_t kColumnChunk = 96;  // a multiple of kTileColumns; x of a panel: 48 KiB
constexpr int64_t kCacheBytes = 256 * 1024;
constexpr int64_t kTileColumns = 6;  // × 2 half groups = 12 sums, 2 weights, 1 activation
constexpr int kAloneGroups = 2;
constexpr int64_t kTileGroups = 4;  // most groups at a time, when there are few columns

// Eight consecutive weights of a plain layout as f32.
template <Layout layout>
CUTAWAY_INLINE __m256 load_weights(const uint8_t* group, int64_t index) noexcept {
  if constexpr (layout == Layout::kHalf) {
    return load_halves(reinterpret_cast<const uint16_t*>(group) + index);
  } else if constexpr (layout == Layout::kBrain) {
    const auto* w = reinterpret_cast<const __m128i*>(group + index * 2);
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(w)), 16);
    return _mm256_castsi256_ps(wide);
  } else {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(group) + index);
  }
}

// A panel is read in one short burst, so the memory's own prefetching hardly starts: while one is
// dequantised, the group's next one is asked for.
CUTAWAY_INLINE void prefetch(const uint8_t* begin, size_t bytes) noexcept {
  for (size_t i = 0; i < bytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(begin + i), _MM_HINT_T0);
  }
}

// K elements 4·i … of the rows 8·h …, unsigned and kOffset more than they are, to out[0 … 3][16].
template <typename Block>
CUTAWAY_INLINE void dequantise_bytes(__m256i q, __m256 d, __m256 m, float* out) noexcept {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // byte i of each 32-bit lane
    const __m256i shifted = _mm256_srl_epi32(q, _mm_cvtsi32_si128(8 * i));
    const __m256i byte = _mm256_and_si256(shifted, _mm256_set1_epi32(255));
    const __m256i value = _mm256_sub_epi32(byte, _mm256_set1_epi32(Block::kOffset));
    // d · q is exact in f32 (11 + 8 bits), so one rounding remains, as in ref.
    _mm256_store_ps(out + i * kGroupRows, _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(value), m));
  }
}

template <int J, typename Block>
CUTAWAY_INLINE void dequantise_step(const Block& block, int h, __m256 d, __m256 m,
                                    float* out) noexcept {
  dequantise_bytes<Block>(unpack_low<J>(block, h), d, m, out + 4 * J * kGroupRows);
  dequantise_bytes<Block>(unpack_high<J>(block, h), d, m, out + (16 + 4 * J) * kGroupRows);
}

// out[k][16] = the weights of the rows 8·h … of a block.
template <typename Block>
CUTAWAY_INLINE void dequantise_rows(const Block& block, int h, float* out) noexcept {
  const __m256 d = scales_of(block, h);
  __m256 m = _mm256_setzero_ps();
  if constexpr (kHasMin<Block>) m = load_halves(block.m + 8 * h);
  out += 8 * h;
  dequantise_step<0>(block, h, d, m, out);
  dequantise_step<1>(block, h, d, m, out);
  dequantise_step<2>(block, h, d, m, out);
  dequantise_step<3>(block, h, d, m, out);
}

// out[k][16] = the weights of a group's 16 rows at K elements [k_begin, k_begin + k_count).
template <Layout layout>
CUTAWAY_INLINE void dequantise(const uint8_t* group, int64_t k_begin, int64_t k_count,
                               float* out) noexcept {
  if constexpr (!is_blocked(layout)) {
    for (int64_t i = 0; i < k_count * kGroupRows; i += 8) {
      _mm256_store_ps(out + i, load_weights<layout>(group, k_begin * kGroupRows + i));
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
      for (int h = 0; h < 2; ++h) dequantise_rows(*block, h, out);
    }
  }
}

// y[c][16·g + …] += Σ_k weights[g][k][…] · x[c][k] for `C` columns and `G` groups of `rows[g]`
// rows.
template <int C, int G>
CUTAWAY_INLINE void tile(const float* const* weights, int64_t k_count, const float* x,
                         int64_t x_stride, bool first, const int64_t* rows, float* y,
                         int64_t y_stride) noexcept {
  __m256 acc[G][C][2];
  for (int g = 0; g < G; ++g) {
    for (int c = 0; c < C; ++c) {
      for (int h = 0; h < 2; ++h) {
        acc[g][c][h] = first ? _mm256_setzero_ps()
                             : load_first(y + c * y_stride + 16 * g + 8 * h, rows[g] - 8 * h);
      }
    }
  }
  const float* w[G];
  for (int g = 0; g < G; ++g) w[g] = weights[g];
  const float* column[C];
  for (int c = 0; c < C; ++c) column[c] = x + c * x_stride;
  for (int64_t k = 0; k < k_count; ++k) {
    __m256 value[C];
    for (int c = 0; c < C && G > 1; ++c) value[c] = _mm256_broadcast_ss(column[c] + k);
    for (int g = 0; g < G; ++g) {
      const __m256 w0 = _mm256_loadu_ps(w[g] + k * kGroupRows);
      const __m256 w1 = _mm256_loadu_ps(w[g] + k * kGroupRows + 8);
      for (int c = 0; c < C; ++c) {
        if (G == 1) value[c] = _mm256_broadcast_ss(column[c] + k);
        acc[g][c][0] = _mm256_fmadd_ps(w0, value[c], acc[g][c][0]);
        acc[g][c][1] = _mm256_fmadd_ps(w1, value[c], acc[g][c][1]);
      }
    }
  }
  for (int g = 0; g < G; ++g) {
    for (int c = 0; c < C; ++c) {
      for (int h = 0; h < 2; ++h) {
        store_first(y + c * y_stride + 16 * g + 8 * h, rows[g] - 8 * h, acc[g][c][h]);
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
  __m256 acc[G][2];
  for (int i = 0; i < G; ++i) {
    group[i] = w.group(g + i * apart);
    acc[i][0] = acc[i][1] = _mm256_setzero_ps();
  }
  for (int64_t k = 0; k < w.cols; ++k) {
    const __m256 value = _mm256_broadcast_ss(x + k);
    for (int i = 0; i < G; ++i) {
      for (int h = 0; h < 2; ++h) {
        const __m256 weights = load_weights<layout>(group[i], k * kGroupRows + 8 * h);
        acc[i][h] = _mm256_fmadd_ps(weights, value, acc[i][h]);
      }
    }
  }
  for (int i = 0; i < G; ++i) {
    const int64_t left = w.rows - (g + i * apart) * kGroupRows;
    float* to = y + (g + i * apart - group_begin) * kGroupRows;
    for (int h = 0; h < 2; ++h) store_first(to + 8 * h, left - 8 * h, acc[i][h]);
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
    columns<3, 2>(panel, p.x + k0, p.x_stride, p.n, y, p.y_stride);
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
  const int64_t at_once = n == 1 ? kTileGroups : n <= 3 ? 2 : 1;
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

#define CUTAWAY_AVX2_F32(layout)                                                                 \
  template void matmul_f32<layout>(const PackedMatrix&, int64_t, int64_t, const float*, int64_t, \
                                   int64_t, float*, int64_t) noexcept;
CUTAWAY_AVX2_F32(Layout::kNibbleMin)
CUTAWAY_AVX2_F32(Layout::kNibble)
CUTAWAY_AVX2_F32(Layout::kByte)
CUTAWAY_AVX2_F32(Layout::kHalf)
CUTAWAY_AVX2_F32(Layout::kBrain)
CUTAWAY_AVX2_F32(Layout::kFloat)
CUTAWAY_AVX2_F32(Layout::kFiveMin)
CUTAWAY_AVX2_F32(Layout::kFive)
CUTAWAY_AVX2_F32(Layout::kNonlinear)
CUTAWAY_AVX2_F32(Layout::kMicro)
CUTAWAY_AVX2_F32(Layout::kSuper2)
CUTAWAY_AVX2_F32(Layout::kSuper3)
CUTAWAY_AVX2_F32(Layout::kSuper4)
CUTAWAY_AVX2_F32(Layout::kSuper5)
CUTAWAY_AVX2_F32(Layout::kSuper6)
CUTAWAY_AVX2_F32(Layout::kSuperCode)
#undef CUTAWAY_AVX2_F32

}  // namespace cutaway::kernels::avx2
