// Products of packed weights and 8-bit activations. A lane owns a row: per block of 32 K its
// integer sum is exact, then one or two fma's in K order add it, whatever the number of columns.
// These are the steps of avx2_matmul_q8.cc, so the bits are the same.
#include "kernels/x86/avx512.h"
#include "kernels/x86/avx512_unpack.h"

namespace cutaway::kernels::avx512 {
namespace {

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

// Step J of a block: 4 · J + 0 … 3 of each half of its K elements.
template <int J, int C, int G, typename Block>
CUTAWAY_INLINE void add_step(const Block* const (&block)[G], const Columns& x,
                             __m512i (&sums)[C][G]) noexcept {
  __m512i low[G], high[G];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
    const Step step = unpack<J>(*block[g]);
    low[g] = step.low;
    high[g] = step.high;
  }
  add_products<C, G>(low, x, 4 * J, sums);
  if constexpr (std::is_same_v<Block, ByteBlock>) fence(sums);
  add_products<C, G>(high, x, 16 + 4 * J, sums);
  fence(sums);
}

// Σ_k q · x of 16 rows over one block, q unsigned: Block::kOffset more than the weight.
template <int C, int G, typename Block>
CUTAWAY_INLINE void block_sums(const Block* const (&block)[G], const Columns& x,
                               __m512i (&sums)[C][G]) noexcept {
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) sums[c][g] = _mm512_setzero_si512();
  }
  add_step<0>(block, x, sums);
  add_step<1>(block, x, sums);
  add_step<2>(block, x, sums);
  add_step<3>(block, x, sums);
}

// Adds one block's share of C columns and G groups to the row sums.
template <int C, int G, typename Block>
CUTAWAY_INLINE void add_block(const Block* const (&block)[G], const Columns& x,
                              __m512 (&acc)[C][G]) noexcept {
  __m512i sums[C][G];
  block_sums<C, G>(block, x, sums);
  __m512 d[G];
  [[maybe_unused]] __m512 m[G];
  for (int g = 0; g < G; ++g) {
    d[g] = scales_of(*block[g]);
    if constexpr (kHasMin<Block>) m[g] = load_halves(block[g]->m);
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    const __m512 scale = _mm512_set1_ps(x.scale[c * x.block_stride]);
    [[maybe_unused]] __m512i offset;
    if constexpr (Block::kOffset != 0) {
      constexpr bool kShifts =
          std::is_same_v<Block, NibbleBlock> || std::is_same_v<Block, ByteBlock>;
      offset = offset_times<Block::kOffset, Half::kBoth, kShifts>(x.sum + c * x.block_stride);
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      if constexpr (Block::kOffset != 0) sums[c][g] = _mm512_sub_epi32(sums[c][g], offset);
      acc[c][g] =
          _mm512_fmadd_ps(_mm512_mul_ps(d[g], scale), _mm512_cvtepi32_ps(sums[c][g]), acc[c][g]);
    }
    if constexpr (kHasMin<Block>) {
      const __m512 total = _mm512_set1_ps(x.total[c * x.block_stride]);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) acc[c][g] = _mm512_fmadd_ps(m[g], total, acc[c][g]);
    }
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
  const char* next;  // the groups that follow, into the second cache: next_bytes a block
  size_t next_bytes;
};

// C columns from `column` on × the groups; y is the place of the first group's row 0 of column 0.
template <int C, int G, typename Block>
void tile(const Groups<Block, G>& groups, const Q8Activations& x, int64_t column,
          const Fetch& fetch, float* y, int64_t y_stride) noexcept {
  Columns columns(x, column);
  const Block* block[G];
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
    for (int g = 0; g < G; ++g) {
      const auto* ahead = reinterpret_cast<const char*>(block[g]) + distance;
      for (size_t at = 0; at < sizeof(Block); at += 64) _mm_prefetch(ahead + at, _MM_HINT_T0);
    }
    for (size_t at = 0; at < next_bytes; at += 64) _mm_prefetch(next + at, _MM_HINT_T1);
    next += next_bytes;
    add_block<C, G>(block, columns, acc);
    columns.next_block();
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
template <int C, int G, typename Block>
CUTAWAY_INLINE void tiles(const Groups<Block, G>& groups, const Q8Activations& x, int64_t column,
                          int64_t end, Fetch fetch, float* y, int64_t y_stride) noexcept {
  for (; end - column >= C; column += C) {
    tile<C, G>(groups, x, column, fetch, y, y_stride);
    fetch.next += static_cast<size_t>(groups.blocks) * fetch.next_bytes;
    fetch.distance = 2 * sizeof(Block);
  }
  if constexpr (C > 1) {
    if (column < end) tiles<C - 1, G>(groups, x, column, end, fetch, y, y_stride);
  }
}

// Columns [column, end) × the G groups from g on.
template <Layout layout, int G>
void columns_of_groups(const PackedMatrix& w, int64_t g, const Q8Activations& x, int64_t column,
                       int64_t end, float* y, int64_t y_stride) noexcept {
  using Block = BlockOf<layout>;
  Groups<Block, G> groups;
  groups.blocks = w.cols / kBlockK;
  for (int i = 0; i < G; ++i) {
    groups.block[i] = reinterpret_cast<const Block*>(w.group(g + i));
    groups.rows[i] = first_lanes(w.rows - (g + i) * kGroupRows);
  }
  constexpr int kColumns = tile_columns(G);
  const int64_t count = (end - column + kColumns - 1) / kColumns;
  constexpr int64_t kLines = G * sizeof(Block) / 64;
  Fetch fetch;
  fetch.distance = kPrefetchBytes;
  fetch.next = reinterpret_cast<const char*>(groups.block[0] + groups.blocks * G);
  fetch.next_bytes = count == 1 ? 0 : 64 * static_cast<size_t>((kLines + count - 1) / count);
  tiles<kColumns, G>(groups, x, column, end, fetch, y, y_stride);
}

// One column × G groups (g, g + apart, …): what it waits for is memory, which serves a few long
// streams better than one, or than short ones.
template <Layout layout, int G>
void one_column(const PackedMatrix& w, int64_t group_begin, int64_t g, int64_t apart,
                const Q8Activations& x, float* y) noexcept {
  using Block = BlockOf<layout>;
  const Block* block[G];
  for (int i = 0; i < G; ++i) block[i] = reinterpret_cast<const Block*>(w.group(g + i * apart));
  Columns columns(x, 0);
  __m512 acc[1][G];
#pragma GCC unroll 4
  for (int i = 0; i < G; ++i) acc[0][i] = _mm512_setzero_ps();
  for (int64_t b = w.cols / kBlockK; b > 0; --b) {
    for (int i = 0; i < G; ++i) {
      const auto* ahead = reinterpret_cast<const char*>(block[i]) + kPrefetchBytes;
      for (size_t at = 0; at < sizeof(Block); at += 64) _mm_prefetch(ahead + at, _MM_HINT_T0);
    }
    add_block<1, G>(block, columns, acc);
    columns.next_block();
    for (int i = 0; i < G; ++i) ++block[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < G; ++i) {
    const int64_t at = g + i * apart;
    _mm512_mask_storeu_ps(y + (at - group_begin) * kGroupRows,
                          first_lanes(w.rows - at * kGroupRows), acc[0][i]);
  }
}

}  // namespace

template <Layout layout>
void matmul_q8(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
               const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept {
  const int64_t blocks = (group_end - group_begin) * (w.cols / kBlockK);
  const int64_t bytes = blocks * static_cast<int64_t>(sizeof(BlockOf<layout>));
  if (n == 1 && bytes >= kLongStreams) {
    const int64_t apart = (group_end - group_begin) / 2;
    for (int64_t g = group_begin; g < group_begin + apart; ++g) {
      one_column<layout, 2>(w, group_begin, g, apart, x, y);
    }
    if ((group_end - group_begin) % 2 != 0) {
      one_column<layout, 1>(w, group_begin, group_end - 1, 0, x, y);
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
        columns_of_groups<layout, 2>(w, g, x, c0, end, to, y_stride);
      } else {
        columns_of_groups<layout, 1>(w, g, x, c0, end, to, y_stride);
      }
    }
  }
}

#define CUTAWAY_AVX512_Q8(layout)                                                              \
  template void matmul_q8<layout>(const PackedMatrix&, int64_t, int64_t, const Q8Activations&, \
                                  int64_t, float*, int64_t) noexcept;
CUTAWAY_AVX512_Q8(Layout::kNibbleMin)
CUTAWAY_AVX512_Q8(Layout::kNibble)
CUTAWAY_AVX512_Q8(Layout::kByte)
CUTAWAY_AVX512_Q8(Layout::kFiveMin)
CUTAWAY_AVX512_Q8(Layout::kFive)
CUTAWAY_AVX512_Q8(Layout::kNonlinear)
CUTAWAY_AVX512_Q8(Layout::kMicro)
#undef CUTAWAY_AVX512_Q8

}  // namespace cutaway::kernels::avx512
