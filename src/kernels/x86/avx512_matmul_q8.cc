// Products of packed weights and 8-bit activations. A lane owns a row: per block of 32 K its
// integer sum is exact, then one or two fma's in K order add it, whatever the number of columns.
// These are the steps of avx2_matmul_q8.cc, so the bits are the same.
#include "kernels/x86/avx512.h"

namespace cutaway::kernels::avx512 {
namespace {

// How far ahead of the one column that decode runs: two pages, since the processor's own
// prefetching stops at the end of each.
constexpr size_t kPrefetchBytes = 8192;
constexpr int kTileColumns = 6;  // × 2 groups = 12 integer and 12 float sums, in 32 registers

// Where the activations of C consecutive columns lie. Strides, not pointers: 4 · C pointers would
// not stay in registers.
struct Columns {
  const int8_t* q;
  const float* scale;
  const int32_t* sum;
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

// Σ_k q · x of 16 rows over one block, q unsigned: 0 … 15, or 128 more than the weight.
template <int C, int G, typename Block>
CUTAWAY_INLINE void block_sums(const Block* const (&block)[G], const Columns& x,
                               __m512i (&sums)[C][G]) noexcept {
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) sums[c][g] = _mm512_setzero_si512();
  }
  if constexpr (std::is_same_v<Block, ByteBlock>) {
    const __m512i sign = _mm512_set1_epi8(-128);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      __m512i w[G];
      for (int g = 0; g < G; ++g) w[g] = _mm512_xor_si512(load_bytes(block[g]->q[j]), sign);
      add_products<C, G>(w, x, 4 * j, sums);
      fence(sums);
    }
  } else {
    const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      __m512i low[G], high[G];
      for (int g = 0; g < G; ++g) {
        const __m512i q = load_bytes(block[g]->q[j]);
        low[g] = _mm512_and_si512(q, mask);
        high[g] = _mm512_and_si512(_mm512_srli_epi16(q, 4), mask);
      }
      add_products<C, G>(low, x, 4 * j, sums);
      add_products<C, G>(high, x, 16 + 4 * j, sums);
      fence(sums);
    }
  }
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
    d[g] = load_halves(block[g]->d);
    if constexpr (std::is_same_v<Block, NibbleMinBlock>) m[g] = load_halves(block[g]->m);
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    const __m512 scale = _mm512_set1_ps(x.scale[c * x.block_stride]);
    [[maybe_unused]] __m512i offset;
    if constexpr (!std::is_same_v<Block, NibbleMinBlock>) {
      // Taken off: 8 of each nibble, the 128 that made a byte unsigned.
      constexpr int kShift = std::is_same_v<Block, NibbleBlock> ? 3 : 7;
      offset = _mm512_slli_epi32(broadcast_4_bytes(x.sum + c * x.block_stride), kShift);
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      if constexpr (!std::is_same_v<Block, NibbleMinBlock>) {
        sums[c][g] = _mm512_sub_epi32(sums[c][g], offset);
      }
      acc[c][g] =
          _mm512_fmadd_ps(_mm512_mul_ps(d[g], scale), _mm512_cvtepi32_ps(sums[c][g]), acc[c][g]);
    }
    if constexpr (std::is_same_v<Block, NibbleMinBlock>) {
      const __m512 total = _mm512_set1_ps(x.total[c * x.block_stride]);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) acc[c][g] = _mm512_fmadd_ps(m[g], total, acc[c][g]);
    }
  }
}

// The call's constants.
struct Product {
  const PackedMatrix& w;
  int64_t group_begin;  // whose rows begin at y
  const Q8Activations& x;
  float* y;
  int64_t y_stride;
};

// C columns from `first` on × the G groups from g on.
template <Layout layout, int C, int G>
void tile(const Product& p, int64_t g, int64_t first) noexcept {
  using Block = BlockOf<layout>;
  Columns columns(p.x, first);
  const Block* block[G];
  for (int i = 0; i < G; ++i) block[i] = reinterpret_cast<const Block*>(p.w.group(g + i));
  __m512 acc[C][G];
  for (int c = 0; c < C; ++c) {
    for (int i = 0; i < G; ++i) acc[c][i] = _mm512_setzero_ps();
  }
  for (int64_t b = p.x.cols / kBlockK; b > 0; --b) {
    if constexpr (C == 1) {
      for (int i = 0; i < G; ++i) {
        const auto* ahead = reinterpret_cast<const char*>(block[i]) + kPrefetchBytes;
        for (size_t at = 0; at < sizeof(Block); at += 64) _mm_prefetch(ahead + at, _MM_HINT_T0);
      }
    }
    add_block<C, G>(block, columns, acc);
    columns.next_block();
    for (int i = 0; i < G; ++i) ++block[i];
  }
  for (int i = 0; i < G; ++i) {
    const __mmask16 rows = first_lanes(p.w.rows - (g + i) * kGroupRows);
    float* y = p.y + first * p.y_stride + (g + i - p.group_begin) * kGroupRows;
    for (int c = 0; c < C; ++c) _mm512_mask_storeu_ps(y + c * p.y_stride, rows, acc[c][i]);
  }
}

// Columns [first, end) × G groups, C at a time, then the rest.
template <Layout layout, int C, int G>
void columns(const Product& p, int64_t g, int64_t first, int64_t end) noexcept {
  for (; end - first >= C; first += C) tile<layout, C, G>(p, g, first);
  if constexpr (C > 1) {
    if (first < end) columns<layout, C - 1, G>(p, g, first, end);
  }
}

}  // namespace

template <Layout layout>
void matmul_q8(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
               const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept {
  const Product product = {w, group_begin, x, y, y_stride};
  // Columns whose activations stay in the second cache while all groups pass over them.
  constexpr int64_t kChunkBytes = 384 * 1024;
  int64_t chunk = w.cols > 0 ? kChunkBytes / w.cols / kTileColumns * kTileColumns : n;
  if (chunk < kTileColumns) chunk = kTileColumns;
  for (int64_t c0 = 0; c0 < n; c0 += chunk) {
    const int64_t c_end = n - c0 < chunk ? n : c0 + chunk;
    int64_t g = group_begin;
    for (; g + 2 <= group_end; g += 2) columns<layout, kTileColumns, 2>(product, g, c0, c_end);
    if (g < group_end) columns<layout, kTileColumns, 1>(product, g, c0, c_end);
  }
}

#define CUTAWAY_AVX512_Q8(layout)                                                              \
  template void matmul_q8<layout>(const PackedMatrix&, int64_t, int64_t, const Q8Activations&, \
                                  int64_t, float*, int64_t) noexcept;
CUTAWAY_AVX512_Q8(Layout::kNibbleMin)
CUTAWAY_AVX512_Q8(Layout::kNibble)
CUTAWAY_AVX512_Q8(Layout::kByte)
#undef CUTAWAY_AVX512_Q8

}  // namespace cutaway::kernels::avx512
