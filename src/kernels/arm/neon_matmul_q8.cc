// Products of packed weights and 8-bit activations. A lane owns a row: per block of 32 K its
// integer sum is exact, then one or two fma's in K order add it, whatever the number of columns.
//
// Compiled with -fno-schedule-insns: the order of the steps below is what keeps all in registers.
//
// A dot-product instruction adds 4 rows × 4 K to four sums, with four bytes of an activation as the
// lane that all rows share.
#include "kernels/arm/neon.h"
#include "kernels/arm/neon_unpack.h"
#include "kernels/blocks.h"

namespace cutaway::kernels::neon {
namespace {

// How far ahead of the one column that decode runs: two pages, since a processor's own prefetching
// may stop at the end of each.
constexpr size_t kPrefetchBytes = 8192;
constexpr int kTileColumns = 4;
// Vectors of 4 rows. Four columns take half a group at a time: 8 integer sums, 8 float sums, 8
// activations, 2 packed and 2 unpacked weights stay in 32 registers, which a whole group would not.
constexpr int kAllVectors = kGroupRows / 4;
constexpr int kHalfVectors = kAllVectors / 2;

// Where the activations of C consecutive columns lie.
struct Columns {
  const int8_t* q;
  const float* scale;
  const HalfSums* sum;
  const float* total;
  int64_t q_stride, block_stride;

  Columns(const Q8Activations& x, int64_t first) noexcept
      : q(x.q + first * x.cols),
        scale(x.scale + first * (x.cols / kBlockK)),
        sum(x.sum + first * (x.cols / kBlockK)),
        total(x.total + first * (x.cols / kBlockK)),
        q_stride(x.cols),
        block_stride(x.cols / kBlockK) {}

  void next_block() noexcept {
    q += kBlockK;
    ++scale;
    ++sum;
    ++total;
  }
};

// The 32 activations of each column in one block.
template <int C>
struct Values {
  int8x16_t low[C], high[C];
  explicit Values(const Columns& x) noexcept {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      low[c] = vld1q_s8(x.q + c * x.q_stride);
      high[c] = vld1q_s8(x.q + c * x.q_stride + 16);
    }
  }
};

// K elements 4·J … 4·J + 3 and those 16 further on. `from` is the first row.
template <int J, typename Block, int C, int V>
CUTAWAY_INLINE void add_step(const Block& block, int64_t from, const Values<C>& x,
                             int32x4_t (&sums)[C][V]) noexcept {
#pragma GCC unroll 16
  for (int v = 0; v < V; ++v) {
    const Step step = unpack<J>(block, from + 4 * v);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      sums[c][v] = vdotq_laneq_s32(sums[c][v], step.low, x.low[c], J);
      sums[c][v] = vdotq_laneq_s32(sums[c][v], step.high, x.high[c], J);
    }
  }
}

// sums[c][v] = start of column c + Σ_k q · x over one block, for rows from + 4·v …
template <typename Block, int C, int V>
CUTAWAY_INLINE void integer_sums(const Block& block, int64_t from, const Columns& x,
                                 int32x4_t (&sums)[C][V]) noexcept {
  const Values<C> values(x);
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
    int32_t start = 0;
    if constexpr (kSignedOffset<Block> != 0) {
      const HalfSums sum = x.sum[c * x.block_stride];
      start = -kSignedOffset<Block> * (sum.low + sum.high);
    }
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) sums[c][v] = vdupq_n_s32(start);
  }
  add_step<0>(block, from, values, sums);
  add_step<1>(block, from, values, sums);
  add_step<2>(block, from, values, sums);
  add_step<3>(block, from, values, sums);
}

template <typename Block, int C, int V>
CUTAWAY_INLINE void add_block(const Block& block, int64_t from, const Columns& x,
                              float32x4_t (&acc)[C][V]) noexcept {
  int32x4_t sums[C][V];
  integer_sums(block, from, x, sums);
#pragma GCC unroll 16
  for (int v = 0; v < V; ++v) {
    const float32x4_t d = scales_of(block, from + 4 * v);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const float32x4_t scaled = vmulq_n_f32(d, x.scale[c * x.block_stride]);
      acc[c][v] = vfmaq_f32(acc[c][v], scaled, vcvtq_f32_s32(sums[c][v]));
    }
    if constexpr (kHasMin<Block>) {
      const float32x4_t m = load_halves(block.m + from + 4 * v);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        acc[c][v] = vfmaq_n_f32(acc[c][v], m, x.total[c * x.block_stride]);
      }
    }
  }
}

// C columns from `first` on × the rows from … from + 4·V of one group, of which `rows` exist.
template <int C, int V, typename Block>
void tile(const Block* group, int64_t from, int64_t rows, const Q8Activations& x, int64_t first,
          float* y, int64_t y_stride) noexcept {
  Columns columns(x, first);
  float32x4_t acc[C][V];
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) acc[c][v] = vdupq_n_f32(0);
  }
  const int64_t blocks = x.cols / kBlockK;
  for (int64_t b = 0; b < blocks; ++b) {
    if constexpr (C == 1) {
      const auto* ahead = reinterpret_cast<const char*>(group + b) + kPrefetchBytes;
      for (size_t i = 0; i < sizeof(Block); i += 64) __builtin_prefetch(ahead + i);
    }
    add_block(group[b], from, columns, acc);
    columns.next_block();
  }
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      const int64_t row = from + 4 * v;
      store_first(y + (first + c) * y_stride + row, rows - row, acc[c][v]);
    }
  }
}

}  // namespace

template <Layout layout>
void matmul_q8(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
               const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept {
  using Block = BlockOf<layout>;
  // Columns whose activations stay in the second cache while all groups pass over them.
  constexpr int64_t kChunkBytes = 128 * 1024;
  int64_t chunk = w.cols > 0 ? kChunkBytes / w.cols / kTileColumns * kTileColumns : n;
  if (chunk < kTileColumns) chunk = kTileColumns;
  for (int64_t c0 = 0; c0 < n; c0 += chunk) {
    const int64_t c_end = n - c0 < chunk ? n : c0 + chunk;
    for (int64_t g = group_begin; g < group_end; ++g) {
      const auto* group = reinterpret_cast<const Block*>(w.group(g));
      const int64_t left = w.rows - g * kGroupRows;
      const int64_t rows = left < kGroupRows ? left : kGroupRows;
      float* y0 = y + (g - group_begin) * kGroupRows;
      int64_t c = c0;
      for (; c + 4 <= c_end; c += 4) {
        tile<4, kHalfVectors>(group, 0, rows, x, c, y0, y_stride);
        if (rows > 8) tile<4, kHalfVectors>(group, 8, rows, x, c, y0, y_stride);
      }
      if (c + 2 <= c_end) {
        tile<2, kAllVectors>(group, 0, rows, x, c, y0, y_stride);
        c += 2;
      }
      if (c < c_end) tile<1, kAllVectors>(group, 0, rows, x, c, y0, y_stride);
    }
  }
}

#define CUTAWAY_NEON_Q8(layout)                                                                \
  template void matmul_q8<layout>(const PackedMatrix&, int64_t, int64_t, const Q8Activations&, \
                                  int64_t, float*, int64_t) noexcept;
CUTAWAY_NEON_Q8(Layout::kNibbleMin)
CUTAWAY_NEON_Q8(Layout::kNibble)
CUTAWAY_NEON_Q8(Layout::kByte)
CUTAWAY_NEON_Q8(Layout::kFiveMin)
CUTAWAY_NEON_Q8(Layout::kFive)
CUTAWAY_NEON_Q8(Layout::kNonlinear)
CUTAWAY_NEON_Q8(Layout::kMicro)
#undef CUTAWAY_NEON_Q8

}  // namespace cutaway::kernels::neon
