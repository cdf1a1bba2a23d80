// What the products of packed weights and 8-bit activations share, whatever the blocks hold: which
// columns and rows are worked on together, and what is fetched meanwhile. Internal to kernels/arm.
//
// A Kernel is what one layout does:
//   Block, kElements (K elements of a block), kPieces (parts of 32 K in it)
//   add<C, V>(block, from, columns, acc, ahead): adds the share of one block of C columns and the
//     rows from … from + 4·V to the row sums, moves the columns on by its K elements, calls
//     ahead(piece) before each piece
#pragma once

#include "kernels/arm/neon.h"

namespace cutaway::kernels::neon {

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
};

CUTAWAY_INLINE Columns columns_from(const Q8Activations& x, int64_t first) noexcept {
  const int64_t blocks = x.cols / kBlockK;
  return {x.q + first * x.cols,
          x.scale + first * blocks,
          x.sum + first * blocks,
          x.total + first * blocks,
          x.cols,
          blocks};
}

CUTAWAY_INLINE void next_block(Columns& x) noexcept {
  x.q += kBlockK;
  ++x.scale;
  ++x.sum;
  ++x.total;
}

// The 32 activations of each column in one block.
template <int C>
struct Values {
  int8x16_t half[2][C];
};

template <int C>
CUTAWAY_INLINE Values<C> load_values(const Columns& x) noexcept {
  Values<C> values;
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
    values.half[0][c] = vld1q_s8(x.q + c * x.q_stride);
    values.half[1][c] = vld1q_s8(x.q + c * x.q_stride + 16);
  }
  return values;
}

// C columns from `first` on × the rows from … from + 4·V of one group, of which `rows` exist.
template <typename Kernel, int C, int V>
static void tile(const typename Kernel::Block* group, int64_t from, int64_t rows,
                 const Q8Activations& x, int64_t first, float* y, int64_t y_stride) noexcept {
  Columns columns = columns_from(x, first);
  float32x4_t acc[C][V];
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) acc[c][v] = vdupq_n_f32(0);
  }
  const auto* end = group + x.cols / Kernel::kElements;
  for (const auto* block = group; block < end; ++block) {
    Kernel::template add<C, V>(*block, from, columns, acc, [&](int64_t piece) noexcept {
      if constexpr (C == 1) {
        constexpr size_t kBytes = sizeof(*block) / Kernel::kPieces;
        const auto* ahead = reinterpret_cast<const char*>(block) + kPrefetchBytes +
                            static_cast<size_t>(piece) * kBytes;
        for (size_t i = 0; i < kBytes; i += 64) __builtin_prefetch(ahead + i);
      }
    });
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

// matmul_q8 of the table.
template <typename Kernel>
CUTAWAY_INLINE void product(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
                            const Q8Activations& x, int64_t n, float* y,
                            int64_t y_stride) noexcept {
  // Columns whose activations stay in the second cache while all groups pass over them.
  constexpr int64_t kChunkBytes = 128 * 1024;
  int64_t chunk = w.cols > 0 ? kChunkBytes / w.cols / kTileColumns * kTileColumns : n;
  if (chunk < kTileColumns) chunk = kTileColumns;
  for (int64_t c0 = 0; c0 < n; c0 += chunk) {
    const int64_t c_end = n - c0 < chunk ? n : c0 + chunk;
    for (int64_t g = group_begin; g < group_end; ++g) {
      const auto* group = reinterpret_cast<const typename Kernel::Block*>(w.group(g));
      const int64_t left = w.rows - g * kGroupRows;
      const int64_t rows = left < kGroupRows ? left : kGroupRows;
      float* y0 = y + (g - group_begin) * kGroupRows;
      int64_t c = c0;
      for (; c + 4 <= c_end; c += 4) {
        tile<Kernel, 4, kHalfVectors>(group, 0, rows, x, c, y0, y_stride);
        if (rows > 8) tile<Kernel, 4, kHalfVectors>(group, 8, rows, x, c, y0, y_stride);
      }
      if (c + 2 <= c_end) {
        tile<Kernel, 2, kAllVectors>(group, 0, rows, x, c, y0, y_stride);
        c += 2;
      }
      if (c < c_end) tile<Kernel, 1, kAllVectors>(group, 0, rows, x, c, y0, y_stride);
    }
  }
}

}  // namespace cutaway::kernels::neon
