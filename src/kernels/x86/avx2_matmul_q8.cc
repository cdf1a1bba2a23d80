// Products of packed weights and 8-bit activations. A lane owns a row: per block of 32 K its
// integer sum is exact, then one or two fma's in K order add it, whatever the number of columns.
#include "kernels/blocks.h"
#include "kernels/x86/avx2.h"
#include "kernels/x86/avx2_unpack.h"

namespace cutaway::kernels::avx2 {
namespace {

// How far ahead of the one column that decode runs: two pages, since the processor's own
// prefetching stops at the end of each.
constexpr size_t kPrefetchBytes = 8192;
constexpr int64_t kManyTiles = 3;  // from which on unpacking once is worth a buffer
constexpr int kTileColumns = 4;    // × 2 half groups = 8 integer sums, 4 weights, 2 activations

// Where the activations of C consecutive columns lie. Strides, not pointers: 3 · C pointers would
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

  void skip(int64_t blocks) noexcept {
    q += blocks * kBlockK;
    scale += blocks;
    sum += blocks;
    total += blocks;
  }
  void next_block() noexcept { skip(1); }
};

// Keeps the compiler from moving what computes these values to after, or what uses them to before.
// Left to itself it interleaves the steps until a quarter of the instructions are spills.
template <int C>
CUTAWAY_INLINE void fence(__m256i (&sums)[C][2], __m256i& a, __m256i& b) noexcept {
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    __asm__ volatile("" : "+x"(sums[c][0]), "+x"(sums[c][1]), "+x"(a), "+x"(b));
  }
}

// Pairs of 16 bits to sums of 32.
template <int C>
CUTAWAY_INLINE void widen(__m256i (&sums)[C][2]) noexcept {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    sums[c][0] = _mm256_madd_epi16(sums[c][0], ones);
    sums[c][1] = _mm256_madd_epi16(sums[c][1], ones);
  }
}

// Σ_k q · x of 16 rows over one block of nibbles, as pairs of K elements in 16 bits. A pair's
// product is at most 2 · 15 · 127 = 3810 in magnitude, and a lane adds 8 of them: 30480 < 2^15.
//
// The order of the steps keeps 8 sums, 2 packed and 2 unpacked weights, the mask, an activation and
// a product in 16 registers.
template <int C>
CUTAWAY_INLINE void nibble_sums(const uint8_t (&q)[4][64], const Columns& x,
                                __m256i (&sums)[C][2]) noexcept {
  const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    __m256i q0 = load_bytes(q[j]);
    __m256i q1 = load_bytes(q[j] + 32);
    const __m256i low0 = _mm256_and_si256(q0, mask);
    const __m256i low1 = _mm256_and_si256(q1, mask);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const __m256i value = broadcast_4_bytes(x.q + c * x.q_stride + 4 * j);
      const __m256i a0 = _mm256_maddubs_epi16(low0, value);
      const __m256i a1 = _mm256_maddubs_epi16(low1, value);
      sums[c][0] = j == 0 ? a0 : _mm256_add_epi16(sums[c][0], a0);
      sums[c][1] = j == 0 ? a1 : _mm256_add_epi16(sums[c][1], a1);
    }
    fence(sums, q0, q1);
    const __m256i high0 = _mm256_and_si256(_mm256_srli_epi16(q0, 4), mask);
    const __m256i high1 = _mm256_and_si256(_mm256_srli_epi16(q1, 4), mask);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const __m256i value = broadcast_4_bytes(x.q + c * x.q_stride + 16 + 4 * j);
      sums[c][0] = _mm256_add_epi16(sums[c][0], _mm256_maddubs_epi16(high0, value));
      sums[c][1] = _mm256_add_epi16(sums[c][1], _mm256_maddubs_epi16(high1, value));
    }
    fence(sums, q0, q1);
  }
  widen(sums);
}

// The same over bytes. |w| ≤ 128 is unsigned, x takes w's sign: |x| ≤ 127, so a pair is at most
// 2 · 128 · 127 = 32512 < 2^15, but two are not: each is widened at once.
template <int C>
CUTAWAY_INLINE void byte_sums(const int8_t (&q)[8][64], const Columns& x,
                              __m256i (&sums)[C][2]) noexcept {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    __m256i w0 = load_bytes(q[j]);
    __m256i w1 = load_bytes(q[j] + 32);
    const __m256i abs0 = _mm256_abs_epi8(w0);  // −128 becomes 0x80, which is 128 unsigned
    const __m256i abs1 = _mm256_abs_epi8(w1);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const __m256i value = broadcast_4_bytes(x.q + c * x.q_stride + 4 * j);
      const __m256i a0 =
          _mm256_madd_epi16(_mm256_maddubs_epi16(abs0, _mm256_sign_epi8(value, w0)), ones);
      const __m256i a1 =
          _mm256_madd_epi16(_mm256_maddubs_epi16(abs1, _mm256_sign_epi8(value, w1)), ones);
      sums[c][0] = j == 0 ? a0 : _mm256_add_epi32(sums[c][0], a0);
      sums[c][1] = j == 0 ? a1 : _mm256_add_epi32(sums[c][1], a1);
    }
    fence(sums, w0, w1);
  }
}

// The same over the signed bytes that nibbles stand for: |w| ≤ 127, as above.
template <int J, int C>
CUTAWAY_INLINE void add_nonlinear(const NonlinearBlock& block, __m256i values, const Columns& x,
                                  __m256i (&sums)[C][2]) noexcept {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
  for (int part = 0; part < 2; ++part) {
    const __m256i q0 = load_bytes(block.q[J]), q1 = load_bytes(block.q[J] + 32);
    __m256i w0 = _mm256_shuffle_epi8(values, part == 0 ? low_nibbles(q0) : high_nibbles(q0));
    __m256i w1 = _mm256_shuffle_epi8(values, part == 0 ? low_nibbles(q1) : high_nibbles(q1));
    const __m256i abs0 = _mm256_abs_epi8(w0), abs1 = _mm256_abs_epi8(w1);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const __m256i value = broadcast_4_bytes(x.q + c * x.q_stride + 16 * part + 4 * J);
      const __m256i a0 =
          _mm256_madd_epi16(_mm256_maddubs_epi16(abs0, _mm256_sign_epi8(value, w0)), ones);
      const __m256i a1 =
          _mm256_madd_epi16(_mm256_maddubs_epi16(abs1, _mm256_sign_epi8(value, w1)), ones);
      sums[c][0] = J == 0 && part == 0 ? a0 : _mm256_add_epi32(sums[c][0], a0);
      sums[c][1] = J == 0 && part == 0 ? a1 : _mm256_add_epi32(sums[c][1], a1);
    }
    fence(sums, w0, w1);
  }
}
template <int C>
CUTAWAY_INLINE void nonlinear_sums(const NonlinearBlock& block, const Columns& x,
                                   __m256i (&sums)[C][2]) noexcept {
  const __m256i values = table_of(NonlinearBlock::kValues);
  add_nonlinear<0>(block, values, x, sums);
  add_nonlinear<1>(block, values, x, sums);
  add_nonlinear<2>(block, values, x, sums);
  add_nonlinear<3>(block, values, x, sums);
}

// The low or the high elements of step J into the 16-bit sums, which the first of them begins.
template <int J, bool kHigh, int C, typename Block>
CUTAWAY_INLINE void add_pairs(const Block& block, const Columns& x, bool first,
                              __m256i (&sums)[C][2]) noexcept {
  __m256i w0 = kHigh ? unpack_high<J>(block, 0) : unpack_low<J>(block, 0);
  __m256i w1 = kHigh ? unpack_high<J>(block, 1) : unpack_low<J>(block, 1);
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    const __m256i value = broadcast_4_bytes(x.q + c * x.q_stride + 16 * kHigh + 4 * J);
    const __m256i a0 = _mm256_maddubs_epi16(w0, value), a1 = _mm256_maddubs_epi16(w1, value);
    sums[c][0] = first ? a0 : _mm256_add_epi16(sums[c][0], a0);
    sums[c][1] = first ? a1 : _mm256_add_epi16(sums[c][1], a1);
  }
  fence(sums, w0, w1);
}
template <int J, int C, typename Block>
CUTAWAY_INLINE void add_step(const Block& block, const Columns& x, bool first,
                             __m256i (&sums)[C][2]) noexcept {
  add_pairs<J, false>(block, x, first, sums);
  add_pairs<J, true>(block, x, false, sums);
}

// Over unsigned bytes up to 31: a pair's product is at most 2 · 31 · 127 = 7874, and a lane adds 4
// of them: 31496 < 2^15. The first half's sums wait in memory: 16 registers do not hold both.
template <int C, typename Block>
CUTAWAY_INLINE void five_bit_sums(const Block& block, const Columns& x,
                                  __m256i (&sums)[C][2]) noexcept {
  alignas(32) __m256i half[C][2];
  add_step<0>(block, x, true, sums);
  add_step<1>(block, x, false, sums);
  widen(sums);
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    half[c][0] = sums[c][0];
    half[c][1] = sums[c][1];
  }
  add_step<2>(block, x, true, sums);
  add_step<3>(block, x, false, sums);
  widen(sums);
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    sums[c][0] = _mm256_add_epi32(sums[c][0], half[c][0]);
    sums[c][1] = _mm256_add_epi32(sums[c][1], half[c][1]);
  }
}

// Over unsigned bytes up to 15, as nibble_sums.
template <int C, typename Block>
CUTAWAY_INLINE void four_bit_sums(const Block& block, const Columns& x,
                                  __m256i (&sums)[C][2]) noexcept {
  add_step<0>(block, x, true, sums);
  add_step<1>(block, x, false, sums);
  add_step<2>(block, x, false, sums);
  add_step<3>(block, x, false, sums);
  widen(sums);
}

// What a block's integers are, packed or not.
template <typename Block>
struct Kind {
  static constexpr bool kMin = kHasMin<Block>;
  static constexpr bool kBytes = std::is_same_v<Block, ByteBlock>;
  static constexpr bool kUnsigned = !kBytes && !std::is_same_v<Block, NonlinearBlock>;
  static constexpr bool kFiveBits = kHasFifth<Block> || std::is_same_v<Block, MicroBlock>;
  static constexpr bool kFourBits = false;
};
template <typename Block>
struct Kind<Unpacked<Block>> : Kind<Block> {
  static constexpr bool kBytes = std::is_same_v<Block, NonlinearBlock>;
  static constexpr bool kFourBits = !kBytes && !Kind<Block>::kFiveBits;
};

// Σ_k q · x of 16 rows over one block; kOffset more than the weight where the bytes are unsigned.
template <int C, typename Block>
CUTAWAY_INLINE void integer_sums(const Block& block, const Columns& x,
                                 __m256i (&sums)[C][2]) noexcept {
  if constexpr (Kind<Block>::kBytes) {
    byte_sums(block.q, x, sums);
  } else if constexpr (Kind<Block>::kFiveBits) {
    five_bit_sums(block, x, sums);
  } else if constexpr (std::is_same_v<Block, NonlinearBlock>) {
    nonlinear_sums(block, x, sums);
  } else if constexpr (Kind<Block>::kFourBits) {
    four_bit_sums(block, x, sums);
  } else {
    nibble_sums(block.q, x, sums);
  }
}

template <int C, typename Block>
CUTAWAY_INLINE void add_block(const Block& block, const Columns& x, __m256 (&acc)[C][2]) noexcept {
  __m256i sums[C][2];
  integer_sums(block, x, sums);
  const __m256 d[2] = {scales_of(block, 0), scales_of(block, 1)};
  [[maybe_unused]] __m256 m[2];
  if constexpr (Kind<Block>::kMin) {
    m[0] = mins_of(block, 0);
    m[1] = mins_of(block, 1);
  }
  for (int c = 0; c < C; ++c) {
    const __m256 scale = _mm256_broadcast_ss(x.scale + c * x.block_stride);
    if constexpr (Kind<Block>::kUnsigned && Block::kOffset != 0) {
      const __m256i offset = _mm256_madd_epi16(broadcast_4_bytes(x.sum + c * x.block_stride),
                                               _mm256_set1_epi16(Block::kOffset));
      sums[c][0] = _mm256_sub_epi32(sums[c][0], offset);
      sums[c][1] = _mm256_sub_epi32(sums[c][1], offset);
    }
    for (int h = 0; h < 2; ++h) {
      acc[c][h] =
          _mm256_fmadd_ps(_mm256_mul_ps(d[h], scale), _mm256_cvtepi32_ps(sums[c][h]), acc[c][h]);
    }
    if constexpr (Kind<Block>::kMin) {
      const __m256 total = _mm256_broadcast_ss(x.total + c * x.block_stride);
      for (int h = 0; h < 2; ++h) acc[c][h] = _mm256_fmadd_ps(m[h], total, acc[c][h]);
    }
  }
}

// The weights that the next tiles need, asked for while these are worked on: `lines` cache lines a
// block.
struct Fetch {
  const char* next;
  int64_t lines;
};

// Blocks of a group, from the group's `begin`-th on, and of its 16 rows those that are there.
template <typename Block>
struct Part {
  const Block* block;
  int64_t begin, count, rows;
};

// C columns from `first` on × part of a group. Between parts the sums rest in y, which keeps their
// bits.
template <int C, typename Block>
void tile(const Part<Block>& part, const Q8Activations& x, int64_t first, Fetch& fetch, float* y,
          int64_t y_stride) noexcept {
  Columns columns(x, first);
  columns.skip(part.begin);
  __m256 acc[C][2];
  for (int c = 0; c < C; ++c) {
    for (int h = 0; h < 2; ++h) {
      acc[c][h] = part.begin == 0
                      ? _mm256_setzero_ps()
                      : load_first(y + (first + c) * y_stride + 8 * h, part.rows - 8 * h);
    }
  }
  for (int64_t b = 0; b < part.count; ++b) {
    if constexpr (C == 1) {
      const auto* ahead = reinterpret_cast<const char*>(part.block + b) + kPrefetchBytes;
      for (size_t i = 0; i < sizeof(Block); i += 64) _mm_prefetch(ahead + i, _MM_HINT_T0);
    } else {
      for (int64_t i = 0; i < fetch.lines; ++i, fetch.next += 64) {
        _mm_prefetch(fetch.next, _MM_HINT_T0);
      }
    }
    add_block<C>(part.block[b], columns, acc);
    columns.next_block();
  }
  for (int c = 0; c < C; ++c) {
    for (int h = 0; h < 2; ++h) {
      store_first(y + (first + c) * y_stride + 8 * h, part.rows - 8 * h, acc[c][h]);
    }
  }
}

// Columns [c, c_end) × part of a group.
template <typename Block>
CUTAWAY_INLINE void tiles(const Part<Block>& part, const Q8Activations& x, int64_t c, int64_t c_end,
                          Fetch fetch, float* y, int64_t y_stride) noexcept {
  for (; c + 4 <= c_end; c += 4) tile<4>(part, x, c, fetch, y, y_stride);
  for (; c + 2 <= c_end; c += 2) tile<2>(part, x, c, fetch, y, y_stride);
  if (c < c_end) tile<1>(part, x, c, fetch, y, y_stride);
}

// The same for many columns: a panel of blocks, as many as the first cache holds, is unpacked once
// for all of them.
template <typename Block>
void panels(const Part<Block>& group, const Q8Activations& x, int64_t c, int64_t c_end,
            int64_t lines, float* y, int64_t y_stride) noexcept {
  constexpr int64_t kPanelBlocks = 48;
  alignas(64) Unpacked<Block> panel[kPanelBlocks];
  for (int64_t b = 0; b < group.count; b += kPanelBlocks) {
    const int64_t left = group.count - b;
    const int64_t count = left < kPanelBlocks ? left : kPanelBlocks;
    for (int64_t i = 0; i < count; ++i) unpack_block(group.block[b + i], panel[i]);
    // What follows in memory is the next panel, of this group or of the next.
    const Fetch fetch = {reinterpret_cast<const char*>(group.block + b + count), lines};
    tiles<Unpacked<Block>>({panel, b, count, group.rows}, x, c, c_end, fetch, y, y_stride);
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
      const int64_t left = w.rows - g * kGroupRows;
      const Part<Block> group = {reinterpret_cast<const Block*>(w.group(g)), 0, w.cols / kBlockK,
                                 left < kGroupRows ? left : kGroupRows};
      float* to = y + (g - group_begin) * kGroupRows;
      constexpr int64_t kLines = (sizeof(Block) + 63) / 64;
      const int64_t count = (c_end - c0 + kTileColumns - 1) / kTileColumns;
      const int64_t lines = (kLines + count - 1) / count;
      if constexpr (!std::is_same_v<Block, ByteBlock>) {
        if (group.count > 0 && count >= kManyTiles) {
          panels(group, x, c0, c_end, lines, to, y_stride);
          continue;
        }
      }
      const Fetch fetch = {reinterpret_cast<const char*>(w.group(g + 1)), lines};
      tiles(group, x, c0, c_end, fetch, to, y_stride);
    }
  }
}

#define CUTAWAY_AVX2_Q8(layout)                                                                \
  template void matmul_q8<layout>(const PackedMatrix&, int64_t, int64_t, const Q8Activations&, \
                                  int64_t, float*, int64_t) noexcept;
CUTAWAY_AVX2_Q8(Layout::kNibbleMin)
CUTAWAY_AVX2_Q8(Layout::kNibble)
CUTAWAY_AVX2_Q8(Layout::kByte)
CUTAWAY_AVX2_Q8(Layout::kFiveMin)
CUTAWAY_AVX2_Q8(Layout::kFive)
CUTAWAY_AVX2_Q8(Layout::kNonlinear)
CUTAWAY_AVX2_Q8(Layout::kMicro)
#undef CUTAWAY_AVX2_Q8

}  // namespace cutaway::kernels::avx2
