// Attention over one tile of keys. Up to six query rows share each key and value that is loaded; a
// row's own arithmetic is the same in any company: over d (scores) and over positions (values) in
// order, one lane per key and per element of the output.
//
// With more rows than one such set, and always when it is quantised, a piece of the tile is first
// brought to f32 in a buffer that the first cache holds. Pieces are of the head's elements; scores
// rest in memory between them, which keeps their bits. The bits are those of avx2_attention.cc.
#include <limits>

#include "kernels/x86/avx512_kv.h"

namespace cutaway::kernels::avx512 {
namespace {

constexpr int kSetRows = 6;         // × 4 vectors = 24 sums, 4 keys or values, 1 broadcast
constexpr int64_t kChunkRows = 48;  // whose scores are kept at once: 12 KiB
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

using Scores = float[kChunkRows][kTilePositions];

// Rows [first, first + rows) of a call, and the keys that some of them see.
struct Chunk {
  Chunk(const AttentionTileArgs& all, int64_t first_row, int64_t n) noexcept
      : args(all), first(first_row), rows(n) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row_begin = args.begin[first + r], row_end = args.end[first + r];
      if (row_begin >= row_end) continue;
      if (row_begin < begin) begin = row_begin;
      if (row_end > end) end = row_end;
    }
  }
  // Few rows wait for memory and ask for the next tile; many find it in a cache.
  int64_t keys_ahead() const noexcept { return ahead(args.tile.k, args.next.k); }
  int64_t values_ahead() const noexcept { return ahead(args.tile.v, args.next.v); }
  int64_t ahead(const void* now, const void* next) const noexcept {
    if (args.n > 2 * kSetRows || next == nullptr) return 0;
    return reinterpret_cast<intptr_t>(next) - reinterpret_cast<intptr_t>(now);
  }
  int64_t key_blocks() const noexcept { return (end + kKeyLanes - 1) / kKeyLanes; }

  const AttentionTileArgs& args;
  int64_t first, rows;
  int64_t begin = kTilePositions, end = 0;
};

// A piece of the keys: element i of block b's 16 positions at data + (b · stride + i) · 16.
template <typename E>
struct Keys {
  const E* data;
  int64_t stride;
  int64_t first, n;  // elements of the head
};

// scores[r][16·b …) (+)= q_r · k over the piece, for R rows and the B key blocks from 0 on.
template <typename E, int R, int B>
void add_scores(const Keys<E>& keys, const float* const* q, int64_t ahead,
                float (*scores)[kTilePositions]) noexcept {
  __m512 acc[R][B];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      acc[r][b] =
          keys.first == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(scores[r] + b * kKeyLanes);
    }
  }
  const float* row[R];
  for (int r = 0; r < R; ++r) row[r] = q[r] + keys.first;
  const E* key[B];
  for (int b = 0; b < B; ++b) key[b] = keys.data + b * keys.stride * kKeyLanes;
  for (int64_t i = 0; i < keys.n; ++i) {
    __m512 value[B];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      const E* at = key[b] + i * kKeyLanes;
      // A line of kF16 holds two.
      if (sizeof(E) == 4 || i % 2 == 0) fetch(at, ahead, 1);
      value[b] = load16(at);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      __m512 x = _mm512_set1_ps(row[r][i]);
      __asm__("" : "+v"(x));  // one load for all blocks
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) acc[r][b] = _mm512_fmadd_ps(x, value[b], acc[r][b]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) _mm512_storeu_ps(scores[r] + b * kKeyLanes, acc[r][b]);
  }
}

template <typename E, int R>
void score_sets(const Chunk& chunk, const Keys<E>& keys, int64_t r, int64_t ahead,
                Scores& scores) noexcept {
  for (; chunk.rows - r >= R; r += R) {
    const float* const* q = chunk.args.q + chunk.first + r;
    if (chunk.end > 2 * kKeyLanes) {
      add_scores<E, R, 4>(keys, q, ahead, scores + r);
    } else {
      add_scores<E, R, 2>(keys, q, ahead, scores + r);
    }
    ahead = 0;
  }
  if constexpr (R > 1) {
    if (r < chunk.rows) score_sets<E, R - 1>(chunk, keys, r, ahead, scores);
  }
}

// Bit p: whether row r sees key p.
CUTAWAY_INLINE uint64_t seen_keys(const AttentionTileArgs& args, int64_t r) noexcept {
  const int64_t begin = args.begin[r], end = args.end[r];
  if (begin >= end) return 0;
  const uint64_t below_end = end == kTilePositions ? ~uint64_t{0} : (uint64_t{1} << end) - 1;
  return below_end & ~((uint64_t{1} << begin) - 1);
}
CUTAWAY_INLINE __mmask16 of_block(uint64_t seen, int b) noexcept {
  return static_cast<__mmask16>(seen >> (kKeyLanes * b));
}

// Turns a row's products into scores, −inf where it does not see, and finds their largest.
CUTAWAY_INLINE void finish_scores(const AttentionTileArgs& args, int64_t r,
                                  float* scores) noexcept {
  const uint64_t seen = seen_keys(args, r);
  const __m512 scale = _mm512_set1_ps(args.scale);
  const __m512 cap = _mm512_set1_ps(args.soft_cap);
  const __m512 least = _mm512_set1_ps(kMinusInfinity);
  __m512 s[4];
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    s[b] = _mm512_mul_ps(_mm512_loadu_ps(scores + b * kKeyLanes), scale);
    if (args.soft_cap > 0) s[b] = _mm512_mul_ps(cap, tanh16(_mm512_div_ps(s[b], cap)));
    s[b] = _mm512_mask_mov_ps(least, of_block(seen, b), s[b]);
    _mm512_storeu_ps(scores + b * kKeyLanes, s[b]);
  }
  args.max[r] =
      _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(s[0], s[1]), _mm512_max_ps(s[2], s[3])));
}

// Turns a row's scores into exp(score − max), 0 where it does not see. The sum is taken over eight
// lanes of fixed positions, as avx2 takes it; a key that is not seen adds an exact 0.
template <bool Kept>
CUTAWAY_INLINE void soften(const AttentionTileArgs& args, int64_t r, float* scores) noexcept {
  const uint64_t seen = seen_keys(args, r);
  if (seen == 0) {
    args.sum[r] = 0;
    if constexpr (Kept) args.moment[r] = 0;
    std::memset(scores, 0, kTilePositions * sizeof(float));
    return;
  }
  const __m512 shift = _mm512_set1_ps(args.max[r]);
  __m256 total = _mm256_setzero_ps(), moment = _mm256_setzero_ps();
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    const __m512 shifted = _mm512_sub_ps(_mm512_loadu_ps(scores + b * kKeyLanes), shift);
    const __m512 weight = _mm512_maskz_mov_ps(of_block(seen, b), exp16(shifted));
    _mm512_storeu_ps(scores + b * kKeyLanes, weight);
    total = _mm256_add_ps(total, _mm512_castps512_ps256(weight));
    total = _mm256_add_ps(total, _mm512_extractf32x8_ps(weight, 1));
    if constexpr (Kept) {  // an unseen key's −inf times its 0 is no 0
      const __m512 product = _mm512_maskz_mul_ps(of_block(seen, b), weight, shifted);
      moment = _mm256_add_ps(moment, _mm512_castps512_ps256(product));
      moment = _mm256_add_ps(moment, _mm512_extractf32x8_ps(product, 1));
    }
  }
  args.sum[r] = sum_lanes(total);
  if constexpr (Kept) args.moment[r] = sum_lanes(moment);
}

// The first n of a row's 64 numbers.
CUTAWAY_INLINE void keep_row(const float* row, int64_t n, float* out) noexcept {
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    store_first(out + b * kKeyLanes, n - b * kKeyLanes, _mm512_loadu_ps(row + b * kKeyLanes));
  }
}

// A piece of the values: elements [first, first + n) of position p at data + p · stride.
template <typename E>
struct Values {
  const E* data;
  int64_t stride;
  int64_t first, n;
};

// out[r][0 … 16·U) += Σ_p weight[r][p] · v[p][…] for p in [begin, end), in order; of U = 1 the
// lanes alone.
template <typename E, int R, int U>
CUTAWAY_INLINE void add_vectors(const E* v, int64_t stride, const float (*weights)[kTilePositions],
                                int64_t begin, int64_t end, float* const* out, int64_t i,
                                __mmask16 lanes, int64_t ahead) noexcept {
  __m512 acc[R][U];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      acc[r][u] = _mm512_maskz_loadu_ps(U == 1 ? lanes : 0xFFFF, out[r] + i + 16 * u);
    }
  }
  for (int64_t p = begin; p < end; ++p) {
    const E* at = v + p * stride + i;
    fetch(at, ahead, 16 * U * static_cast<int64_t>(sizeof(E)));
    __m512 value[U];
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) value[u] = U == 1 ? load16(at, lanes) : load16(at + 16 * u);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      __m512 weight = _mm512_set1_ps(weights[r][p]);
      __asm__("" : "+v"(weight));
#pragma GCC unroll 4
      for (int u = 0; u < U; ++u) acc[r][u] = _mm512_fmadd_ps(weight, value[u], acc[r][u]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      _mm512_mask_storeu_ps(out[r] + i + 16 * u, U == 1 ? lanes : 0xFFFF, acc[r][u]);
    }
  }
}

// The same over the whole piece; out[r] is the place of the piece's first element.
template <typename E, int R>
void add_values(const Values<E>& values, const float (*weights)[kTilePositions], int64_t begin,
                int64_t end, float* const* out, int64_t ahead) noexcept {
  if (begin >= end) return;
  int64_t i = 0;
  for (; i + 64 <= values.n; i += 64) {
    add_vectors<E, R, 4>(values.data, values.stride, weights, begin, end, out, i, 0xFFFF, ahead);
  }
  for (; i + 32 <= values.n; i += 32) {
    add_vectors<E, R, 2>(values.data, values.stride, weights, begin, end, out, i, 0xFFFF, ahead);
  }
  for (; i < values.n; i += 16) {
    add_vectors<E, R, 1>(values.data, values.stride, weights, begin, end, out, i,
                         first_lanes(values.n - i), ahead);
  }
}

// R rows from r on: each its keys in order, together where all of them see.
template <typename E, int R>
void value_set(const Chunk& chunk, const Values<E>& values, int64_t r, int64_t ahead,
               const Scores& weights) noexcept {
  const int32_t* begin = chunk.args.begin + chunk.first + r;
  const int32_t* end = chunk.args.end + chunk.first + r;
  int64_t all_begin = 0, all_end = kTilePositions;
  float* out[R];
  for (int i = 0; i < R; ++i) {
    if (begin[i] > all_begin) all_begin = begin[i];
    if (end[i] < all_end) all_end = end[i];
    out[i] = chunk.args.out + (chunk.first + r + i) * chunk.args.d_v + values.first;
  }
  const bool together = all_begin < all_end;
  for (int i = 0; i < R; ++i) {
    add_values<E, 1>(values, weights + r + i, begin[i], together ? all_begin : end[i], out + i, 0);
  }
  if (!together) return;
  add_values<E, R>(values, weights + r, all_begin, all_end, out, ahead);
  for (int i = 0; i < R; ++i) {
    add_values<E, 1>(values, weights + r + i, all_end, end[i], out + i, 0);
  }
}

template <typename E, int R>
void value_sets(const Chunk& chunk, const Values<E>& values, int64_t r, int64_t ahead,
                const Scores& weights) noexcept {
  for (; chunk.rows - r >= R; r += R) {
    value_set<E, R>(chunk, values, r, ahead, weights);
    ahead = 0;
  }
  if constexpr (R > 1) {
    if (r < chunk.rows) value_sets<E, R - 1>(chunk, values, r, ahead, weights);
  }
}

void soften_all(const Chunk& chunk, Scores& scores) noexcept {
  const AttentionTileArgs& args = chunk.args;
  for (int64_t r = 0; r < chunk.rows; ++r) finish_scores(args, chunk.first + r, scores[r]);
  if (args.scores != nullptr) {
    for (int64_t r = 0; r < chunk.rows; ++r) {
      float* to = args.scores[chunk.first + r];
      if (to != nullptr) keep_row(scores[r], args.scores_n, to);
    }
  }
  if (args.moment == nullptr) {
    for (int64_t r = 0; r < chunk.rows; ++r) soften<false>(args, chunk.first + r, scores[r]);
  } else {
    for (int64_t r = 0; r < chunk.rows; ++r) soften<true>(args, chunk.first + r, scores[r]);
  }
  if (args.weights != nullptr) {
    for (int64_t r = 0; r < chunk.rows; ++r) {
      float* to = args.weights[chunk.first + r];
      if (to != nullptr) keep_row(scores[r], args.weights_n, to);
    }
  }
}

template <KvType T>
using Element = std::conditional_t<T == KvType::kF32, float, uint16_t>;

// Plain elements. Restored: whether pieces of kF16 pass through the buffer.
template <KvType T, bool Restored>
void attend_plain(const Chunk& chunk) noexcept {
  const AttentionTileArgs& args = chunk.args;
  alignas(64) Scores scores;
  alignas(64) float buffer[Restored ? kTilePositions * kPiece : 1];
  for (int64_t first = 0; first < args.d_k; first += kPiece) {
    const int64_t n = args.d_k - first < kPiece ? args.d_k - first : kPiece;
    if constexpr (Restored) {
      restore_keys(args.tile.k, args.d_k, first, n, chunk.key_blocks(), buffer);
      score_sets<float, kSetRows>(chunk, {buffer, n, first, n}, 0, 0, scores);
    } else {
      const auto* k = static_cast<const Element<T>*>(args.tile.k) + first * kKeyLanes;
      score_sets<Element<T>, kSetRows>(chunk, {k, args.d_k, first, n}, 0, chunk.keys_ahead(),
                                       scores);
    }
  }
  soften_all(chunk, scores);
  std::memset(args.out + chunk.first * args.d_v, 0,
              static_cast<size_t>(chunk.rows * args.d_v) * sizeof(float));
  for (int64_t first = 0; first < args.d_v; first += kPiece) {
    const int64_t n = args.d_v - first < kPiece ? args.d_v - first : kPiece;
    if constexpr (Restored) {
      const int64_t stride = (n + 15) / 16 * 16;
      restore_values(args.tile.v, args.d_v, first, n, chunk.begin, chunk.end, stride, buffer);
      value_sets<float, kSetRows>(chunk, {buffer, stride, first, n}, 0, 0, scores);
    } else {
      const auto* v = static_cast<const Element<T>*>(args.tile.v) + first;
      value_sets<Element<T>, kSetRows>(chunk, {v, args.d_v, first, n}, 0, chunk.values_ahead(),
                                       scores);
    }
  }
}

// One quantised block of the keys: the stored integers as unpack_keys has them, the scales of the
// first 16 positions, those of the next 16 `blocks` · 16 halves on; kQ4's mins 64 · blocks on.
struct ScaledKeys {
  const float* stored;
  const uint16_t* scales;
  int64_t blocks, s, n;
  int64_t ahead;
};

// part[r][b] += q_r[i] · the stored element i of B blocks' 16 positions.
template <int R, int B>
CUTAWAY_INLINE void add_element(const float* stored, const float* const (&row)[R], int64_t i,
                                __m512 (&part)[R][B]) noexcept {
  __m512 value[B];
#pragma GCC unroll 4
  for (int b = 0; b < B; ++b) value[b] = load16(stored + (b * kKvBlock + i) * kKeyLanes);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    __m512 x = _mm512_set1_ps(row[r][i]);
    __asm__("" : "+v"(x));  // one load for all blocks
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) part[r][b] = _mm512_fmadd_ps(x, value[b], part[r][b]);
  }
}

// scores[r] (+)= d · Σ q·t, then + m · Σ q (query_sums, of kQ4), over the block.
template <KvType T, int R, int B>
void add_scaled_scores(const ScaledKeys& keys, const float* const* q, const float* query_sums,
                       float (*scores)[kTilePositions]) noexcept {
  __m512 part[R][B];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) part[r][b] = _mm512_setzero_ps();
  }
  const float* row[R];
  for (int r = 0; r < R; ++r) row[r] = q[r] + keys.s * kKvBlock;
  if constexpr (T == KvType::kQ8) {
    for (int64_t i = 0; i < keys.n; ++i) add_element(keys.stored, row, i, part);
  } else {
    for (int64_t i = 0; i < kHalfBlock && i < keys.n; ++i) {  // the halves of a byte together
      add_element(keys.stored, row, i, part);
      if (i + kHalfBlock < keys.n) add_element(keys.stored, row, i + kHalfBlock, part);
    }
  }
#pragma GCC unroll 4
  for (int b = 0; b < B; ++b) {
    const uint16_t* scale = keys.scales + b * keys.blocks * kKeyLanes;
    fetch(scale, keys.ahead, 1);
    const __m512 d = load_halves(scale);
    [[maybe_unused]] __m512 m;
    if constexpr (T == KvType::kQ4) {
      fetch(scale + kTilePositions * keys.blocks, keys.ahead, 1);
      m = load_halves(scale + kTilePositions * keys.blocks);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      float* to = scores[r] + b * kKeyLanes;
      __m512 acc = keys.s == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(to);
      acc = _mm512_fmadd_ps(part[r][b], d, acc);
      if constexpr (T == KvType::kQ4) acc = _mm512_fmadd_ps(_mm512_set1_ps(query_sums[r]), m, acc);
      _mm512_storeu_ps(to, acc);
    }
  }
}

template <KvType T, int R>
void scaled_score_sets(const Chunk& chunk, const ScaledKeys& keys, const float* query_sums,
                       int64_t r, Scores& scores) noexcept {
  for (; chunk.rows - r >= R; r += R) {
    const float* const* q = chunk.args.q + chunk.first + r;
    if (chunk.end > 2 * kKeyLanes) {
      add_scaled_scores<T, R, 4>(keys, q, query_sums + r, scores + r);
    } else {
      add_scaled_scores<T, R, 2>(keys, q, query_sums + r, scores + r);
    }
  }
  if constexpr (R > 1) {
    if (r < chunk.rows) scaled_score_sets<T, R - 1>(chunk, keys, query_sums, r, scores);
  }
}

// A row's weights times a block's scales; returns Σ weight · min over the seen keys, in the lanes
// of avx2_kv.h, where there are mins.
CUTAWAY_INLINE float scale_weights(const float* weights, uint64_t seen, const __m512 (&scale)[4],
                                   const __m512* min, float* scaled) noexcept {
  __m256 sum = _mm256_setzero_ps();
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    const __m512 weight = _mm512_loadu_ps(weights + b * kKeyLanes);
    _mm512_storeu_ps(scaled + b * kKeyLanes, _mm512_mul_ps(weight, scale[b]));
    if (min == nullptr) continue;
    const __m512 m = _mm512_maskz_mov_ps(of_block(seen, b), min[b]);
    sum = _mm256_fmadd_ps(_mm512_castps512_ps256(weight), _mm512_castps512_ps256(m), sum);
    sum = _mm256_fmadd_ps(_mm512_extractf32x8_ps(weight, 1), _mm512_extractf32x8_ps(m, 1), sum);
  }
  return min == nullptr ? 0 : sum_lanes(sum);
}

template <KvType T>
void add_quantised_values(const Chunk& chunk, const Scores& weights, float* buffer) noexcept {
  const AttentionTileArgs& args = chunk.args;
  const int64_t blocks = kv_blocks(args.d_v);
  const uint16_t* scales = tile_scales(T, args.tile.v, args.d_v);
  const int64_t ahead = chunk.values_ahead();
  alignas(64) Scores scaled;
  for (int64_t s = 0; s < blocks; ++s) {
    const int64_t first = s * kKvBlock;
    const int64_t n = args.d_v - first < kKvBlock ? args.d_v - first : kKvBlock;
    __m512 scale[4], min[4];
    block_scales(scales, blocks, s, ahead, scale);
    if constexpr (T == KvType::kQ4) {
      block_scales(scales + kTilePositions * blocks, blocks, s, ahead, min);
    }
    unpack_values<T>(args.tile.v, args.d_v, s, n, chunk.begin, chunk.end, ahead, buffer);
    for (int64_t r = 0; r < chunk.rows; ++r) {
      const uint64_t seen = seen_keys(args, chunk.first + r);
      float* out = args.out + (chunk.first + r) * args.d_v + first;
      float start = 0;
      if (seen != 0) {
        start = scale_weights(weights[r], seen, scale, T == KvType::kQ4 ? min : nullptr, scaled[r]);
      }
      store_first(out, n, _mm512_set1_ps(start));
      store_first(out + 16, n - 16, _mm512_set1_ps(start));
    }
    value_sets<float, kSetRows>(chunk, {buffer, kKvBlock, first, n}, 0, 0, scaled);
  }
}

template <KvType T>
void attend_quantised(const Chunk& chunk) noexcept {
  const AttentionTileArgs& args = chunk.args;
  alignas(64) Scores scores;
  alignas(64) float buffer[kTilePositions * kKvBlock];
  const int64_t blocks = kv_blocks(args.d_k);
  for (int64_t s = 0; s < blocks; ++s) {
    const int64_t first = s * kKvBlock;
    const int64_t n = args.d_k - first < kKvBlock ? args.d_k - first : kKvBlock;
    unpack_keys<T>(args.tile.k, args.d_k, s, n, chunk.key_blocks(), chunk.keys_ahead(), buffer);
    float query_sums[kChunkRows];
    for (int64_t r = 0; r < chunk.rows && T == KvType::kQ4; ++r) {
      query_sums[r] = block_sum(args.q[chunk.first + r] + first, n);
    }
    const uint16_t* scales = tile_scales(T, args.tile.k, args.d_k) + s * kKeyLanes;
    scaled_score_sets<T, kSetRows>(chunk, {buffer, scales, blocks, s, n, chunk.keys_ahead()},
                                   query_sums, 0, scores);
  }
  soften_all(chunk, scores);
  add_quantised_values<T>(chunk, scores, buffer);
}

}  // namespace

void attention_tile(const AttentionTileArgs& args) noexcept {
  for (int64_t first = 0; first < args.n; first += kChunkRows) {
    const Chunk chunk(args, first, args.n - first < kChunkRows ? args.n - first : kChunkRows);
    switch (args.tile.type) {
      case KvType::kF32:
        attend_plain<KvType::kF32, false>(chunk);
        break;
      case KvType::kF16:
        if (chunk.rows > kSetRows) {
          attend_plain<KvType::kF16, true>(chunk);
        } else {
          attend_plain<KvType::kF16, false>(chunk);
        }
        break;
      case KvType::kQ8:
        attend_quantised<KvType::kQ8>(chunk);
        break;
      case KvType::kQ4:
        attend_quantised<KvType::kQ4>(chunk);
        break;
    }
  }
}

void attention_merge(float tile_max, float tile_sum, const float* tile_out, int64_t d_v, float* max,
                     float* sum, float* out) noexcept {
  if (tile_sum == 0) return;  // the tile showed nothing (one visible key alone gives 1)
  const float merged = tile_max > *max ? tile_max : *max;
  const __m512 factors = exp16(
      _mm512_mask_mov_ps(_mm512_set1_ps(tile_max - merged), 1, _mm512_set1_ps(*max - merged)));
  const __m512 keep = _mm512_broadcastss_ps(_mm512_castps512_ps128(factors));
  const __m512 take = _mm512_permutexvar_ps(_mm512_set1_epi32(1), factors);
  *max = merged;
  *sum = _mm512_cvtss_f32(keep) * *sum + _mm512_cvtss_f32(take) * tile_sum;
  for (int64_t i = 0; i < d_v; i += 16) {
    const __m512 kept = _mm512_mul_ps(load_first(out + i, d_v - i), keep);
    store_first(out + i, d_v - i, _mm512_fmadd_ps(load_first(tile_out + i, d_v - i), take, kept));
  }
}

void attention_finish(float sum, int64_t d_v, float* out) noexcept {
  const __m512 divisor = _mm512_set1_ps(sum);
  for (int64_t i = 0; i < d_v; i += 16) {
    store_first(out + i, d_v - i, _mm512_div_ps(load_first(out + i, d_v - i), divisor));
  }
}

}  // namespace cutaway::kernels::avx512
