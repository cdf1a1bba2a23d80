// Products of super-blocks and 8-bit activations. A lane owns a row: per scale, 16 or 32 K, its
// integer sum is exact, then one fma in K order adds it, and one the minimum of each 32, whatever
// the number of columns.
#include "kernels/x86/avx2_q8.h"
#include "kernels/x86/avx2_super.h"

namespace cutaway::kernels::avx2 {
namespace {

// Steps whose sums of two products fit 16 bits together, for the largest integer of the weights:
// 2 · largest · 127 · steps < 2^15. Of SuperCode's |numbers| it is one.
template <typename Super>
constexpr int run_steps() noexcept {
  if (std::is_same_v<Super, Super4>) return 8;     // 30480
  if (std::is_same_v<Super, Super5>) return 4;     // 31496
  if (std::is_same_v<Super, Super6>) return 2;     // 32004
  if (std::is_same_v<Super, SuperCode>) return 1;  // 32258
  return 4;                                        // 7112 at most
}

// Where the weights of one part of 32 K come from, in halves of 8 rows: a super-block …
template <typename S>
struct Packed {
  using Super = S;
  const Super& super;
  int64_t p;

  template <int step>
  CUTAWAY_INLINE_MEMBER __m256i integers(int h) const noexcept {
    return avx2::integers<step, Super>(super.part[p], h);
  }
  CUTAWAY_INLINE_MEMBER __m256 scale(int s, int h) const noexcept {
    return scales(super, p * Super::kScales + s, h);
  }
  CUTAWAY_INLINE_MEMBER __m256 min(int h) const noexcept {
    if constexpr (std::is_same_v<Super, Super2>) return load_scale(super.dmin + 8 * h);
    return minima(super, p, h);
  }
  // Of Super2: the integers of the minima of both halves of the 32 K.
  CUTAWAY_INLINE_MEMBER __m256i min_pair(int h) const noexcept {
    const __m256i low = _mm256_srli_epi32(widen(super.scale_min[2 * p] + 8 * h), 4);
    const __m256i high = _mm256_srli_epi32(widen(super.scale_min[2 * p + 1] + 8 * h), 4);
    return _mm256_or_si256(low, _mm256_slli_epi32(high, 16));
  }
};

// … or what was made of it before, once for many columns.
template <typename Super>
struct alignas(64) Unpacked {
  uint8_t q[8][kLanes];
  float scale[Super::kScales][kGroupRows];
  float min[kGroupRows];
  int32_t min_pair[kGroupRows];
};
template <typename S>
struct FromPanel {
  using Super = S;
  const Unpacked<Super>& part;

  template <int step>
  CUTAWAY_INLINE_MEMBER __m256i integers(int h) const noexcept {
    return load_bytes(part.q[step] + 32 * h);
  }
  CUTAWAY_INLINE_MEMBER __m256 scale(int s, int h) const noexcept {
    return _mm256_load_ps(part.scale[s] + 8 * h);
  }
  CUTAWAY_INLINE_MEMBER __m256 min(int h) const noexcept {
    return _mm256_load_ps(part.min + 8 * h);
  }
  CUTAWAY_INLINE_MEMBER __m256i min_pair(int h) const noexcept {
    return load_bytes(part.min_pair + 8 * h);
  }
};

// The products of pairs of K elements of steps [step, end), in 16 bits.
template <int step, int end, bool first, typename Source, int C>
CUTAWAY_INLINE void add_steps(const Source& source, const Columns& x,
                              __m256i (&sums)[C][2]) noexcept {
  __m256i w0 = source.template integers<step>(0);
  __m256i w1 = source.template integers<step>(1);
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    const __m256i value = broadcast_4_bytes(x.q + c * x.q_stride + 4 * step);
    __m256i a0, a1;
    if constexpr (std::is_same_v<typename Source::Super, SuperCode>) {
      a0 = _mm256_maddubs_epi16(_mm256_abs_epi8(w0), _mm256_sign_epi8(value, w0));
      a1 = _mm256_maddubs_epi16(_mm256_abs_epi8(w1), _mm256_sign_epi8(value, w1));
    } else {
      a0 = _mm256_maddubs_epi16(w0, value);
      a1 = _mm256_maddubs_epi16(w1, value);
    }
    sums[c][0] = first ? a0 : _mm256_add_epi16(sums[c][0], a0);
    sums[c][1] = first ? a1 : _mm256_add_epi16(sums[c][1], a1);
  }
  fence(sums, w0, w1);
  if constexpr (step + 1 < end) add_steps<step + 1, end, false>(source, x, sums);
}

// The integer sums of steps [step, end), run by run.
template <int step, int end, bool first, typename Source, int C>
CUTAWAY_INLINE void add_runs(const Source& source, const Columns& x,
                             __m256i (&sums)[C][2]) noexcept {
  constexpr int kRun = run_steps<typename Source::Super>();
  __m256i run[C][2];
  add_steps<step, step + kRun, true>(source, x, run);
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m256i wide = _mm256_madd_epi16(run[c][h], ones);
      sums[c][h] = first ? wide : _mm256_add_epi32(sums[c][h], wide);
    }
  }
  if constexpr (step + kRun < end) add_runs<step + kRun, end, false>(source, x, sums);
}

// Scale s of a part: its integer sums, and their fma.
template <int s, typename Source, int C>
CUTAWAY_INLINE void add_scale(const Source& source, const Columns& x,
                              __m256 (&acc)[C][2]) noexcept {
  using Super = typename Source::Super;
  constexpr int kSteps = 8 / Super::kScales;
  constexpr bool kUnsigned = Super::kOffset != 0 && !std::is_same_v<Super, SuperCode>;
  // What made the integers unsigned: kOffset · Σ of the activations that this scale covers.
  constexpr int32_t kPair = s == 0 ? Super::kOffset : Super::kOffset << 16;
  __m256i sums[C][2];
  add_runs<s * kSteps, (s + 1) * kSteps, true>(source, x, sums);
  const __m256 d[2] = {source.scale(s, 0), source.scale(s, 1)};
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    const __m256 scale = _mm256_broadcast_ss(x.scale + c * x.block_stride);
    __m256i offset = _mm256_setzero_si256();
    if constexpr (kUnsigned) {
      offset = _mm256_madd_epi16(broadcast_4_bytes(x.sum + c * x.block_stride),
                                 _mm256_set1_epi32(kPair));
    }
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m256i dot = kUnsigned ? _mm256_sub_epi32(sums[c][h], offset) : sums[c][h];
      acc[c][h] = _mm256_fmadd_ps(_mm256_mul_ps(d[h], scale), _mm256_cvtepi32_ps(dot), acc[c][h]);
    }
  }
}

// The minimum of a part.
template <typename Source, int C>
CUTAWAY_INLINE void subtract_minimum(const Source& source, const Columns& x,
                                     __m256 (&acc)[C][2]) noexcept {
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const __m256 m = source.min(h);
    if constexpr (std::is_same_v<typename Source::Super, Super2>) {
      const __m256i pair = source.min_pair(h);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const __m256i sum = broadcast_4_bytes(x.sum + c * x.block_stride);
        const __m256 scale = _mm256_broadcast_ss(x.scale + c * x.block_stride);
        acc[c][h] = _mm256_fnmadd_ps(_mm256_mul_ps(m, scale),
                                     _mm256_cvtepi32_ps(_mm256_madd_epi16(pair, sum)), acc[c][h]);
      }
    } else {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const __m256 total = _mm256_broadcast_ss(x.total + c * x.block_stride);
        acc[c][h] = _mm256_fnmadd_ps(m, total, acc[c][h]);
      }
    }
  }
}

// One part's share of C columns.
template <typename Source, int C>
CUTAWAY_INLINE void add_part(const Source& source, const Columns& x, __m256 (&acc)[C][2]) noexcept {
  add_scale<0>(source, x, acc);
  if constexpr (Source::Super::kScales == 2) add_scale<1>(source, x, acc);
  if constexpr (Source::Super::kMin) subtract_minimum(source, x, acc);
}

template <Layout layout>
struct SuperKernel {
  using Block = SuperOf<layout>;
  static constexpr int64_t kElements = kSuperK, kPieces = kParts;

  template <int C, typename Ahead>
  CUTAWAY_INLINE void add(const Block& super, Columns& x, __m256 (&acc)[C][2],
                          const Ahead& ahead) noexcept {
    for (int64_t p = 0; p < kParts; ++p) {
      ahead(p);
      add_part(Packed<Block>{super, p}, x, acc);
      next_block(x);
    }
  }
};

template <int step, typename Super>
CUTAWAY_INLINE void unpack_steps(const Packed<Super>& source, Unpacked<Super>& out) noexcept {
  for (int h = 0; h < 2; ++h) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.q[step] + 32 * h),
                       source.template integers<step>(h));
  }
  if constexpr (step < 7) unpack_steps<step + 1>(source, out);
}

template <typename Super>
CUTAWAY_INLINE void unpack_part(const Packed<Super>& source, Unpacked<Super>& out) noexcept {
  unpack_steps<0>(source, out);
  for (int h = 0; h < 2; ++h) {
    for (int s = 0; s < Super::kScales; ++s) {
      _mm256_store_ps(out.scale[s] + 8 * h, source.scale(s, h));
    }
    if constexpr (Super::kMin) _mm256_store_ps(out.min + 8 * h, source.min(h));
    if constexpr (std::is_same_v<Super, Super2>) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(out.min_pair + 8 * h), source.min_pair(h));
    }
  }
}

constexpr int64_t kManyColumns =
    3 * kTileColumns;                        // from which on unpacking once is worth a buffer
constexpr int64_t kPanelParts = 4 * kParts;  // 24 KB, in the first cache

// The next K elements of a group, unpacked, and of its 16 rows those that are there.
template <typename Super>
struct Panel {
  Unpacked<Super> part[kPanelParts];
  int64_t begin, count, rows;  // begin, count: parts of 32 K
};

// C columns from `first` on × a panel. Between panels the sums rest in y, which keeps their bits.
template <int C, typename Super>
void panel_tile(const Panel<Super>& panel, const Q8Activations& x, int64_t first, Fetch& fetch,
                float* y, int64_t y_stride) noexcept {
  Columns columns = columns_from(x, first);
  columns.q += panel.begin * kBlockK;
  columns.scale += panel.begin;
  columns.sum += panel.begin;
  columns.total += panel.begin;
  __m256 acc[C][2];
  for (int c = 0; c < C; ++c) {
    for (int h = 0; h < 2; ++h) {
      acc[c][h] = panel.begin == 0
                      ? _mm256_setzero_ps()
                      : load_first(y + (first + c) * y_stride + 8 * h, panel.rows - 8 * h);
    }
  }
  for (int64_t p = 0; p < panel.count; ++p) {
    for (int64_t i = 0; i < fetch.lines; ++i, fetch.next += 64) {
      _mm_prefetch(fetch.next, _MM_HINT_T0);
    }
    add_part(FromPanel<Super>{panel.part[p]}, columns, acc);
    next_block(columns);
  }
  for (int c = 0; c < C; ++c) {
    for (int h = 0; h < 2; ++h) {
      store_first(y + (first + c) * y_stride + 8 * h, panel.rows - 8 * h, acc[c][h]);
    }
  }
}

// The product with many columns.
template <typename Super>
void panel_product(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
                   const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept {
  Panel<Super> panel;
  // Activations that stay in the second cache while all groups pass over them.
  constexpr int64_t kChunkBytes = 256 * 1024, kLeastChunk = 16 * kTileColumns;
  int64_t chunk = kChunkBytes / w.cols / kTileColumns * kTileColumns;
  if (chunk < kLeastChunk) chunk = kLeastChunk;
  const int64_t parts = w.cols / kBlockK;
  for (int64_t c0 = 0; c0 < n; c0 += chunk) {
    const int64_t end = n - c0 < chunk ? n : c0 + chunk;
    const int64_t tiles = (end - c0 + kTileColumns - 1) / kTileColumns;
    for (int64_t g = group_begin; g < group_end; ++g) {
      const auto* group = reinterpret_cast<const Super*>(w.group(g));
      float* to = y + (g - group_begin) * kGroupRows;
      const int64_t left = w.rows - g * kGroupRows;
      panel.rows = left < kGroupRows ? left : kGroupRows;
      for (panel.begin = 0; panel.begin < parts; panel.begin += panel.count) {
        panel.count = parts - panel.begin < kPanelParts ? parts - panel.begin : kPanelParts;
        for (int64_t p = 0; p < panel.count; ++p) {
          const int64_t at = panel.begin + p;
          unpack_part(Packed<Super>{group[at / kParts], at % kParts}, panel.part[p]);
        }
        // What follows in memory is the next panel, of this group or of the next.
        constexpr int64_t kLines = (sizeof(Super) / kParts + 63) / 64;
        Fetch fetch = {reinterpret_cast<const char*>(group + (panel.begin + panel.count) / kParts),
                       (kLines + tiles - 1) / tiles};
        int64_t c = c0;
        for (; c + 4 <= end; c += 4) panel_tile<4>(panel, x, c, fetch, to, y_stride);
        for (; c + 2 <= end; c += 2) panel_tile<2>(panel, x, c, fetch, to, y_stride);
        if (c < end) panel_tile<1>(panel, x, c, fetch, to, y_stride);
      }
    }
  }
}

}  // namespace

template <Layout layout>
void matmul_super_q8(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
                     const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept {
  if (n >= kManyColumns && w.cols > 0) {
    panel_product<SuperOf<layout>>(w, group_begin, group_end, x, n, y, y_stride);
  } else {
    product<SuperKernel<layout>>(w, group_begin, group_end, x, n, y, y_stride);
  }
}

#define CUTAWAY_AVX2_SUPER(layout)                                             \
  template void matmul_super_q8<layout>(const PackedMatrix&, int64_t, int64_t, \
                                        const Q8Activations&, int64_t, float*, int64_t) noexcept;
CUTAWAY_AVX2_SUPER(Layout::kSuper2)
CUTAWAY_AVX2_SUPER(Layout::kSuper3)
CUTAWAY_AVX2_SUPER(Layout::kSuper4)
CUTAWAY_AVX2_SUPER(Layout::kSuper5)
CUTAWAY_AVX2_SUPER(Layout::kSuper6)
CUTAWAY_AVX2_SUPER(Layout::kSuperCode)
#undef CUTAWAY_AVX2_SUPER

}  // namespace cutaway::kernels::avx2
