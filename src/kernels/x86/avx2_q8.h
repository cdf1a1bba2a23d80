// What the products of packed weights and 8-bit activations share, whatever the blocks hold: which
// columns are worked on together, and what is fetched meanwhile. Internal to kernels/x86.
//
// A Kernel is what one layout does:
//   Block, kElements (K elements of a block), kPieces (parts of 32 K in it)
//   add<C>(block, columns, acc, ahead): adds the share of one block of C columns to the row sums,
//     moves the columns on by its K elements, calls ahead(piece) before each piece
#pragma once

#include "kernels/x86/avx2.h"

namespace cutaway::kernels::avx2 {

// How far ahead of the one column that decode runs: two pages, since the processor's own
// prefetching stops at the end of each.
constexpr size_t kPrefetchBytes = 8192;
constexpr int kTileColumns = 4;  // × 2 half groups = 8 integer sums, 4 weights, 2 activations

// Where the activations of C consecutive columns lie. Strides, not pointers: 3 · C pointers would
// not stay in registers.
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

// Keeps the compiler from moving what computes these values to after, or what uses them to before.
// Left to itself it interleaves the steps until a quarter of the instructions are spills.
template <int C>
CUTAWAY_INLINE void fence(__m256i (&sums)[C][2], __m256i& a, __m256i& b) noexcept {
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    __asm__ volatile("" : "+x"(sums[c][0]), "+x"(sums[c][1]), "+x"(a), "+x"(b));
  }
}

// The weights that the next tiles need, asked for while these are worked on: `lines` cache lines a
// piece.
struct Fetch {
  const char* next;
  int64_t lines;
};

// C columns from `first` on × one group of `rows` rows.
template <typename Kernel, int C>
static void tile(const typename Kernel::Block* group, int64_t rows, const Q8Activations& x,
                 int64_t first, Fetch& fetch, float* y, int64_t y_stride) noexcept {
  Columns columns = columns_from(x, first);
  __m256 acc[C][2];
  for (int c = 0; c < C; ++c) acc[c][0] = acc[c][1] = _mm256_setzero_ps();
  const auto* end = group + x.cols / Kernel::kElements;
  for (const auto* block = group; block < end; ++block) {
    Kernel::template add<C>(*block, columns, acc, [&](int64_t piece) noexcept {
      if constexpr (C == 1) {
        constexpr size_t kBytes = sizeof(*block) / Kernel::kPieces;
        const auto* ahead = reinterpret_cast<const char*>(block) + kPrefetchBytes +
                            static_cast<size_t>(piece) * kBytes;
        for (size_t i = 0; i < kBytes; i += 64) _mm_prefetch(ahead + i, _MM_HINT_T0);
      } else {
        for (int64_t i = 0; i < fetch.lines; ++i, fetch.next += 64) {
          _mm_prefetch(fetch.next, _MM_HINT_T0);
        }
      }
    });
  }
  for (int c = 0; c < C; ++c) {
    for (int h = 0; h < 2; ++h) {
      store_first(y + (first + c) * y_stride + 8 * h, rows - 8 * h, acc[c][h]);
    }
  }
}

// matmul_q8 of the table.
template <typename Kernel>
CUTAWAY_INLINE void product(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
                            const Q8Activations& x, int64_t n, float* y,
                            int64_t y_stride) noexcept {
  using Block = typename Kernel::Block;
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
      constexpr int64_t kLines = (sizeof(Block) / Kernel::kPieces + 63) / 64;
      const int64_t tiles = (c_end - c0 + kTileColumns - 1) / kTileColumns;
      Fetch fetch = {reinterpret_cast<const char*>(w.group(g + 1)), (kLines + tiles - 1) / tiles};
      for (; c + 4 <= c_end; c += 4) tile<Kernel, 4>(group, rows, x, c, fetch, y0, y_stride);
      for (; c + 2 <= c_end; c += 2) tile<Kernel, 2>(group, rows, x, c, fetch, y0, y_stride);
      if (c < c_end) tile<Kernel, 1>(group, rows, x, c, fetch, y0, y_stride);
    }
  }
}

}  // namespace cutaway::kernels::avx2
