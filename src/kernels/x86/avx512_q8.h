// What the products of packed weights and 8-bit activations share, whatever the blocks hold: which
// columns and groups are worked on together, and what is fetched meanwhile. Internal to
// kernels/x86.
//
// A Kernel is what one layout does:
//   Block, kElements (K elements of a block), kPieces (parts of 32 K in it)
//   add<C, G>(block, columns, acc, ahead): adds the share of one block of C columns and G groups
//     to the row sums, moves the columns on by its K elements, calls ahead(piece) before each piece
#pragma once

#include "kernels/x86/avx512.h"

namespace cutaway::kernels::avx512 {

// How far ahead of weights that come from memory: two pages, since the processor's own prefetching
// stops at the end of each.
constexpr size_t kPrefetchBytes = 8192;
// Columns of a tile: 6 × 2 groups = 12 integer and 12 float sums in 32 registers; one group alone
// needs more columns for as many sums at once.
constexpr int tile_columns(int groups) noexcept { return groups == 1 ? 8 : 6; }
constexpr int64_t kLongStreams = 1024 * 1024;  // weights from which two streams are long enough
constexpr int64_t kChunkBytes = 384 * 1024;
constexpr int64_t kLeastChunk = 24;  // a multiple of either tile's columns

// Where the activations of C consecutive columns lie. Strides, not pointers: 4 · C pointers would
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

// sums[c][g] += Σ over 4 K elements of each row: weights[g] (unsigned) · the activations at `at`.
template <int C, int G>
CUTAWAY_INLINE void add_products(const __m512i (&weights)[G], const Columns& x, int64_t at,
                                 __m512i (&sums)[C][G]) noexcept {
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    __m512i value = broadcast_4_bytes(x.q + c * x.q_stride + at);
    // One load for all groups: left to itself the compiler loads again for each.
    if constexpr (G > 1) __asm__("" : "+v"(value));
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) sums[c][g] = _mm512_dpbusd_epi32(sums[c][g], weights[g], value);
  }
}

// Keeps the compiler from moving what computes the sums to after, or what uses them to before:
// it interleaves the steps until registers spill.
template <int C, int G>
CUTAWAY_INLINE void fence(__m512i (&sums)[C][G]) noexcept {
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) __asm__ volatile("" : "+v"(sums[c][g]));
  }
}

// G consecutive groups: the weights of one tile.
template <typename Block, int G>
struct Groups {
  const Block* block[G];
  __mmask16 rows[G];
  int64_t blocks;
};

// What a tile asks the memory for meanwhile.
struct Fetch {
  size_t distance;   // bytes from the weights at hand to those of its own that it fetches
  const char* next;  // the groups that follow, into the second cache: next_bytes a piece
  size_t next_bytes;
};

// Asks for piece `piece` of the blocks `distance` bytes further on.
template <typename Kernel, int G>
CUTAWAY_INLINE void fetch_piece(const typename Kernel::Block* const (&block)[G], size_t distance,
                                int64_t piece) noexcept {
  constexpr size_t kBytes = sizeof(typename Kernel::Block) / Kernel::kPieces;
  const size_t begin = distance + static_cast<size_t>(piece) * kBytes;
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
    const auto* ahead = reinterpret_cast<const char*>(block[g]) + begin;
    for (size_t at = 0; at < kBytes; at += 64) _mm_prefetch(ahead + at, _MM_HINT_T0);
  }
}

// C columns from `column` on × the groups; y is the place of the first group's row 0 of column 0.
template <typename Kernel, int C, int G>
static void tile(const Groups<typename Kernel::Block, G>& groups, const Q8Activations& x,
                 int64_t column, const Fetch& fetch, float* y, int64_t y_stride) noexcept {
  Columns columns = columns_from(x, column);
  const typename Kernel::Block* block[G];
  for (int g = 0; g < G; ++g) block[g] = groups.block[g];
  const char* next = fetch.next;
  const size_t next_bytes = fetch.next_bytes, distance = fetch.distance;
  __m512 acc[C][G];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) acc[c][g] = _mm512_setzero_ps();
  }
  for (int64_t b = groups.blocks; b > 0; --b) {
    Kernel::template add<C, G>(block, columns, acc, [&](int64_t piece) noexcept {
      fetch_piece<Kernel, G>(block, distance, piece);
      for (size_t at = 0; at < next_bytes; at += 64) _mm_prefetch(next + at, _MM_HINT_T1);
      next += next_bytes;
    });
    for (int g = 0; g < G; ++g) ++block[g];
  }
  y += column * y_stride;
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      _mm512_mask_storeu_ps(y + c * y_stride + g * kGroupRows, groups.rows[g], acc[c][g]);
    }
  }
}

// Columns [column, end) × the groups, C at a time, then the rest. The first tile finds its weights
// in memory or, fetched by the tiles of the groups before, in the second cache; the others find
// them in the second cache.
template <typename Kernel, int C, int G>
CUTAWAY_INLINE void tiles(const Groups<typename Kernel::Block, G>& groups, const Q8Activations& x,
                          int64_t column, int64_t end, Fetch fetch, float* y,
                          int64_t y_stride) noexcept {
  for (; end - column >= C; column += C) {
    tile<Kernel, C, G>(groups, x, column, fetch, y, y_stride);
    fetch.next += static_cast<size_t>(groups.blocks * Kernel::kPieces) * fetch.next_bytes;
    fetch.distance = Kernel::kPieces > 1 ? sizeof(typename Kernel::Block) / Kernel::kPieces * 2
                                         : 2 * sizeof(typename Kernel::Block);
  }
  if constexpr (C > 1) {
    if (column < end) tiles<Kernel, C - 1, G>(groups, x, column, end, fetch, y, y_stride);
  }
}

// Columns [column, end) × the G groups from g on.
template <typename Kernel, int G>
static void columns_of_groups(const PackedMatrix& w, int64_t g, const Q8Activations& x,
                              int64_t column, int64_t end, float* y, int64_t y_stride) noexcept {
  using Block = typename Kernel::Block;
  Groups<Block, G> groups;
  groups.blocks = w.cols / Kernel::kElements;
  for (int i = 0; i < G; ++i) {
    groups.block[i] = reinterpret_cast<const Block*>(w.group(g + i));
    groups.rows[i] = first_lanes(w.rows - (g + i) * kGroupRows);
  }
  constexpr int kColumns = tile_columns(G);
  const int64_t count = (end - column + kColumns - 1) / kColumns;
  constexpr int64_t kLines = (G * sizeof(Block) / Kernel::kPieces + 63) / 64;
  Fetch fetch;
  fetch.distance = kPrefetchBytes;
  fetch.next = reinterpret_cast<const char*>(groups.block[0] + groups.blocks * G);
  fetch.next_bytes = count == 1 ? 0 : 64 * static_cast<size_t>((kLines + count - 1) / count);
  tiles<Kernel, kColumns, G>(groups, x, column, end, fetch, y, y_stride);
}

// One column × G groups (g, g + apart, …): what it waits for is memory, which serves a few long
// streams better than one, or than short ones.
template <typename Kernel, int G>
static void one_column(const PackedMatrix& w, int64_t group_begin, int64_t g, int64_t apart,
                       const Q8Activations& x, float* y) noexcept {
  using Block = typename Kernel::Block;
  const Block* block[G];
  for (int i = 0; i < G; ++i) block[i] = reinterpret_cast<const Block*>(w.group(g + i * apart));
  Columns columns = columns_from(x, 0);
  __m512 acc[1][G];
#pragma GCC unroll 4
  for (int i = 0; i < G; ++i) acc[0][i] = _mm512_setzero_ps();
  for (int64_t b = w.cols / Kernel::kElements; b > 0; --b) {
    Kernel::template add<1, G>(block, columns, acc, [&](int64_t piece) noexcept {
      fetch_piece<Kernel, G>(block, kPrefetchBytes, piece);
    });
    for (int i = 0; i < G; ++i) ++block[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < G; ++i) {
    const int64_t at = g + i * apart;
    _mm512_mask_storeu_ps(y + (at - group_begin) * kGroupRows,
                          first_lanes(w.rows - at * kGroupRows), acc[0][i]);
  }
}

// matmul_q8 of the table.
template <typename Kernel>
CUTAWAY_INLINE void product(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
                            const Q8Activations& x, int64_t n, float* y,
                            int64_t y_stride) noexcept {
  const int64_t blocks = (group_end - group_begin) * (w.cols / Kernel::kElements);
  const int64_t bytes = blocks * static_cast<int64_t>(sizeof(typename Kernel::Block));
  if (n == 1 && bytes >= kLongStreams) {
    const int64_t apart = (group_end - group_begin) / 2;
    for (int64_t g = group_begin; g < group_begin + apart; ++g) {
      one_column<Kernel, 2>(w, group_begin, g, apart, x, y);
    }
    if ((group_end - group_begin) % 2 != 0) {
      one_column<Kernel, 1>(w, group_begin, group_end - 1, 0, x, y);
    }
    return;
  }
  // Columns whose activations stay in the second cache while all groups pass over them.
  int64_t chunk = w.cols > 0 ? kChunkBytes / w.cols / kLeastChunk * kLeastChunk : n;
  if (chunk < kLeastChunk) chunk = kLeastChunk;
  // Columns that fit one tile wait for memory, which serves one stream better than two short ones.
  const int64_t step = n <= tile_columns(1) ? 1 : 2;
  for (int64_t c0 = 0; c0 < n; c0 += chunk) {
    const int64_t end = n - c0 < chunk ? n : c0 + chunk;
    for (int64_t g = group_begin; g < group_end; g += step) {
      float* to = y + (g - group_begin) * kGroupRows;
      if (step == 2 && g + 1 < group_end) {
        columns_of_groups<Kernel, 2>(w, g, x, c0, end, to, y_stride);
      } else {
        columns_of_groups<Kernel, 1>(w, g, x, c0, end, to, y_stride);
      }
    }
  }
}

}  // namespace cutaway::kernels::avx512
