// Products of dequantised weights and f32 activations. A lane owns a row and adds fma by fma in K
// order: the steps of avx2_matmul_f32.cc, so the bits are the same.
//
// With few columns plain weights are used as they come from memory. Otherwise a panel of some
// groups' weights is dequantised once into a buffer that the first cache holds, then every column
// passes over it; between panels the sums rest in y, which keeps their bits.
#include "kernels/x86/avx512.h"
#include "kernels/x86/avx512_super.h"
#include "kernels/x86/avx512_unpack.h"

namespace cutaway::kernels::avx512 {
namespace {

constexpr int64_t kPanelK = 128;      // a multiple of kBlockK; 8 KiB of f32 per group
constexpr int64_t kColumnChunk = 96;  // a multiple of kTileColumns; x of a panel: 48 KiB
constexpr int64_t kCacheBytes = 384 * 1024;
constexpr int64_t kTileColumns = 6;  // × 4 groups = 24 sums, 4 weights, 1 activation
constexpr int64_t kTileGroups = 4;
constexpr int kFewColumns = 8;
constexpr size_t kPrefetchBytes = 4096;  // ahead of each group's weights that come from memory

// The 16 rows' weights of a plain layout at K element k, as f32.
template <Layout layout>
CUTAWAY_INLINE __m512 load_weights(const uint8_t* group, int64_t k) noexcept {
  if constexpr (layout == Layout::kHalf) {
    return load_halves(reinterpret_cast<const uint16_t*>(group) + k * kGroupRows);
  } else if constexpr (layout == Layout::kBrain) {
    const auto* w = reinterpret_cast<const __m256i*>(group + k * kGroupRows * 2);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(w)), 16));
  } else {
    return _mm512_loadu_ps(reinterpret_cast<const float*>(group) + k * kGroupRows);
  }
}

// K elements 4·i … of the 16 rows, unsigned and kOffset more than they are, to out[0 … 3][16].
template <typename Block>
CUTAWAY_INLINE void dequantise_bytes(__m512i q, __m512 d, __m512 m, float* out) noexcept {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // byte i of each 32-bit lane
    const __m512i byte = _mm512_and_si512(_mm512_srli_epi32(q, static_cast<unsigned>(8 * i)),
                                          _mm512_set1_epi32(255));
    const __m512i value = _mm512_sub_epi32(byte, _mm512_set1_epi32(Block::kOffset));
    // d · q is exact in f32 (11 + 8 bits), so one rounding remains, as in ref.
    _mm512_storeu_ps(out + i * kGroupRows, _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(value), m));
  }
}

template <int J, typename Block>
CUTAWAY_INLINE void dequantise_step(const Block& block, __m512 d, __m512 m, float* out) noexcept {
  const Step step = unpack<J>(block);
  dequantise_bytes<Block>(step.low, d, m, out + 4 * J * kGroupRows);
  dequantise_bytes<Block>(step.high, d, m, out + (16 + 4 * J) * kGroupRows);
}

// One block's weights to out[k][16].
template <typename Block>
CUTAWAY_INLINE void dequantise_block(const Block& block, float* out) noexcept {
  const __m512 d = scales_of(block);
  __m512 m = _mm512_setzero_ps();
  if constexpr (kHasMin<Block>) m = load_halves(block.m);
  dequantise_step<0>(block, d, m, out);
  dequantise_step<1>(block, d, m, out);
  dequantise_step<2>(block, d, m, out);
  dequantise_step<3>(block, d, m, out);
}

// out[k][16] = the weights of a group's 16 rows at K elements [k_begin, k_begin + k_count). The
// memory's own prefetching hardly starts in so short a burst: the group's next panel is asked for.
template <Layout layout>
CUTAWAY_INLINE void dequantise(const uint8_t* group, int64_t k_begin, int64_t k_count,
                               float* out) noexcept {
  if constexpr (!is_blocked(layout)) {
    constexpr int64_t kBytes = (layout == Layout::kFloat ? 4 : 2) * kGroupRows;  // per K element
    for (int64_t k = 0; k < k_count; ++k) {
      _mm_prefetch(reinterpret_cast<const char*>(group + (k_begin + kPanelK + k) * kBytes),
                   _MM_HINT_T0);
      _mm512_storeu_ps(out + k * kGroupRows, load_weights<layout>(group, k_begin + k));
    }
  } else if constexpr (is_super(layout)) {
    using Super = SuperOf<layout>;
    for (int64_t p = k_begin / kBlockK; p < (k_begin + k_count) / kBlockK; ++p) {
      const Super& super = reinterpret_cast<const Super*>(group)[p / kParts];
      const auto* ahead = reinterpret_cast<const char*>(&super + 1) +
                          static_cast<size_t>(p % kParts) * (sizeof(Super) / kParts);
      for (size_t at = 0; at < sizeof(Super) / kParts; at += 64) {
        _mm_prefetch(ahead + at, _MM_HINT_T0);
      }
      dequantise_part(super, p % kParts, out);
      out += kBlockK * kGroupRows;
    }
  } else {
    using Block = BlockOf<layout>;
    const auto* block = reinterpret_cast<const Block*>(group) + k_begin / kBlockK;
    for (int64_t b = 0; b < k_count / kBlockK; ++b, ++block, out += kBlockK * kGroupRows) {
      const auto* ahead = reinterpret_cast<const char*>(block + kPanelK / kBlockK);
      for (size_t at = 0; at < sizeof(Block); at += 64) _mm_prefetch(ahead + at, _MM_HINT_T0);
      dequantise_block(*block, out);
    }
  }
}

// A panel of some groups' weights.
template <int G>
struct Panel {
  const float* weights[G];
  __mmask16 rows[G];
  int64_t k_count;
  bool first;
};

// y[c][16·g + …] += Σ_k weights[g][k][…] · x[c][k] for C columns and G groups.
template <int C, int G>
void tile(const Panel<G>& panel, const float* x, int64_t x_stride, float* y,
          int64_t y_stride) noexcept {
  __m512 acc[C][G];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) acc[c][g] = _mm512_setzero_ps();
  }
  if (!panel.first) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        acc[c][g] = _mm512_maskz_loadu_ps(panel.rows[g], y + c * y_stride + g * kGroupRows);
      }
    }
  }
  const float* w[G];
  for (int g = 0; g < G; ++g) w[g] = panel.weights[g];
  for (int64_t k = 0; k < panel.k_count; ++k) {
    __m512 weight[G];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) weight[g] = _mm512_loadu_ps(w[g] + k * kGroupRows);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      __m512 value = _mm512_set1_ps(x[c * x_stride + k]);
      if constexpr (G > 1) __asm__("" : "+v"(value));  // one load for all groups
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) acc[c][g] = _mm512_fmadd_ps(weight[g], value, acc[c][g]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      _mm512_mask_storeu_ps(y + c * y_stride + g * kGroupRows, panel.rows[g], acc[c][g]);
    }
  }
}

// The panel × all n columns, C at a time, then the rest.
template <int C, int G>
void tiles(const Panel<G>& panel, const float* x, int64_t x_stride, int64_t n, float* y,
           int64_t y_stride) noexcept {
  for (; n >= C; n -= C, x += C * x_stride, y += C * y_stride) {
    tile<C, G>(panel, x, x_stride, y, y_stride);
  }
  if constexpr (C > 1) {
    if (n > 0) tiles<C - 1, G>(panel, x, x_stride, n, y, y_stride);
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

// Panel [k0, k0 + kPanelK) of the G groups from g on.
template <Layout layout, int G>
void add_panel(const Product& p, int64_t g, int64_t k0) noexcept {
  alignas(64) float buffer[layout == Layout::kFloat ? 1 : G][kPanelK * kGroupRows];
  Panel<G> panel;
  panel.k_count = p.w.cols - k0 < kPanelK ? p.w.cols - k0 : kPanelK;
  panel.first = k0 == 0;
  for (int i = 0; i < G; ++i) {
    panel.rows[i] = first_lanes(p.w.rows - (g + i) * kGroupRows);
    if constexpr (layout == Layout::kFloat) {
      panel.weights[i] = reinterpret_cast<const float*>(p.w.group(g + i)) + k0 * kGroupRows;
    } else {
      dequantise<layout>(p.w.group(g + i), k0, panel.k_count, buffer[i]);
      panel.weights[i] = buffer[i];
    }
  }
  tiles<kTileColumns, G>(panel, p.x + k0, p.x_stride, p.n, p.y + (g - p.group_begin) * kGroupRows,
                         p.y_stride);
}

// C columns × G groups (g0, g0 + apart, …) of plain weights over all of K, with no buffer between:
// what few columns wait for is memory. Groups far apart make G long streams, which memory serves
// better than short ones.
template <Layout layout, int C, int G>
void few_columns(const Product& p, int64_t g0, int64_t apart) noexcept {
  constexpr int64_t kBytes = (layout == Layout::kFloat ? 4 : 2) * kGroupRows;  // per K element
  const uint8_t* group[G];
  for (int g = 0; g < G; ++g) group[g] = p.w.group(g0 + g * apart);
  const float* x = p.x;
  __m512 acc[C][G];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) acc[c][g] = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < p.w.cols; ++k) {
    __m512 weight[G];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      weight[g] = load_weights<layout>(group[g], k);
      _mm_prefetch(reinterpret_cast<const char*>(group[g] + k * kBytes) + kPrefetchBytes,
                   _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      __m512 value = _mm512_set1_ps(x[c * p.x_stride + k]);
      if constexpr (G > 1) __asm__("" : "+v"(value));  // one load for all groups
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) acc[c][g] = _mm512_fmadd_ps(weight[g], value, acc[c][g]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const int64_t at = g0 + g * apart;
      store_first(p.y + c * p.y_stride + (at - p.group_begin) * kGroupRows,
                  p.w.rows - at * kGroupRows, acc[c][g]);
    }
  }
}

// All groups × the product's columns, of which there are C or fewer.
template <Layout layout, int C>
void all_groups_of_few(const Product& p, int64_t group_end) noexcept {
  if constexpr (C > 1) {
    if (p.n < C) return all_groups_of_few<layout, C - 1>(p, group_end);
  }
  constexpr int kGroups = C > 1 && C <= 4 ? 4 : 2;
  const int64_t apart = (group_end - p.group_begin) / kGroups;
  for (int64_t i = 0; i < apart; ++i) few_columns<layout, C, kGroups>(p, p.group_begin + i, apart);
  for (int64_t g = p.group_begin + kGroups * apart; g < group_end; ++g) {
    few_columns<layout, C, 1>(p, g, 0);
  }
}

}  // namespace

template <Layout layout>
void matmul_f32(const PackedMatrix& w, int64_t group_begin, int64_t group_end, const float* x,
                int64_t x_stride, int64_t n, float* y, int64_t y_stride) noexcept {
  if constexpr (!is_blocked(layout)) {
    if (n > 0 && n <= kFewColumns) {
      return all_groups_of_few<layout, kFewColumns>({w, group_begin, x, x_stride, n, y, y_stride},
                                                    group_end);
    }
  }
  // A few columns over weights that come from memory wait for it, and it serves one group's stream
  // better than four.
  constexpr int64_t kInCaches = 4 * 1024 * 1024;
  const bool together =
      n > 32 ||
      (group_end - group_begin) * static_cast<int64_t>(group_bytes(w.layout, w.cols)) < kInCaches;
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
        const int64_t groups = together && group_end - g >= kTileGroups ? kTileGroups : 1;
        for (int64_t inner = 0; inner < (by_group ? panels : 1); ++inner) {
          if (groups == kTileGroups) {
            add_panel<layout, kTileGroups>(product, g, (outer + inner) * kPanelK);
          } else {
            add_panel<layout, 1>(product, g, (outer + inner) * kPanelK);
          }
        }
        g += groups;
      }
    }
  }
}

#define CUTAWAY_AVX512_F32(layout)                                                               \
  template void matmul_f32<layout>(const PackedMatrix&, int64_t, int64_t, const float*, int64_t, \
                                   int64_t, float*, int64_t) noexcept;
CUTAWAY_AVX512_F32(Layout::kNibbleMin)
CUTAWAY_AVX512_F32(Layout::kNibble)
CUTAWAY_AVX512_F32(Layout::kByte)
CUTAWAY_AVX512_F32(Layout::kHalf)
CUTAWAY_AVX512_F32(Layout::kBrain)
CUTAWAY_AVX512_F32(Layout::kFloat)
CUTAWAY_AVX512_F32(Layout::kFiveMin)
CUTAWAY_AVX512_F32(Layout::kFive)
CUTAWAY_AVX512_F32(Layout::kNonlinear)
CUTAWAY_AVX512_F32(Layout::kMicro)
CUTAWAY_AVX512_F32(Layout::kSuper2)
CUTAWAY_AVX512_F32(Layout::kSuper3)
CUTAWAY_AVX512_F32(Layout::kSuper4)
CUTAWAY_AVX512_F32(Layout::kSuper5)
CUTAWAY_AVX512_F32(Layout::kSuper6)
CUTAWAY_AVX512_F32(Layout::kSuperCode)
#undef CUTAWAY_AVX512_F32

}  // namespace cutaway::kernels::avx512
