// Attention over one tile of keys. Up to six query rows share each key and value that is loaded; a
// row's own arithmetic is the same in any company: over d (scores) and over positions (values) in
// order, one lane per key and per element of the output.
#include <limits>

#include "kernels/x86/avx2_kv.h"

namespace cutaway::kernels::avx2 {
namespace {

constexpr int kMaxRows = 6;  // × 2 vectors = 12 sums
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Scores of R rows and the B key blocks from `block` on, −inf where a row does not see.
template <KvType T, int R, int B>
CUTAWAY_INLINE void score_blocks(const AttentionTileArgs& args, const float* const (&q)[R],
                                 const float* const (&sums)[R], int64_t r0, int64_t block,
                                 float (&scores)[R][kTilePositions]) noexcept {
  const int64_t ahead = bytes_ahead(args.tile.k, args.next.k);
  __m256 acc[R][B][2];
  if constexpr (is_quantised(T)) {
    scaled_products<T, R, B>(args.tile.k, args.d_k, block, ahead, q, sums, acc);
  } else {
    plain_products<T, R, B>(args.tile.k, args.d_k, block, ahead, q, acc);
  }
  const __m256 scale = _mm256_set1_ps(args.scale);
  const __m256 cap = _mm256_set1_ps(args.soft_cap);
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const __m256i begin = _mm256_set1_epi32(args.begin[r0 + r]);
    const __m256i end = _mm256_set1_epi32(args.end[r0 + r]);
#pragma GCC unroll 8
    for (int v = 0; v < 2 * B; ++v) {
      __m256 s = _mm256_mul_ps(acc[r][v / 2][v % 2], scale);
      if (args.soft_cap > 0) s = _mm256_mul_ps(cap, tanh8(_mm256_div_ps(s, cap)));
      const int64_t first = block * kKeyLanes + 8 * v;
      const __m256i p = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int32_t>(first)), lanes);
      const __m256i seen =
          _mm256_andnot_si256(_mm256_cmpgt_epi32(begin, p), _mm256_cmpgt_epi32(end, p));
      s = _mm256_blendv_ps(_mm256_set1_ps(kMinusInfinity), s, _mm256_castsi256_ps(seen));
      _mm256_storeu_ps(scores[r] + first, s);
    }
  }
}

// Turns a row's scores of [begin, end) into exp(score − max), 0 around them up to whole vectors.
// The sum is taken over lanes of fixed positions, where a key that is not seen adds an exact 0.
template <bool Kept>
CUTAWAY_INLINE void soften(float* scores, int64_t begin, int64_t end, float* max, float* sum,
                           float* moment) noexcept {
  *max = kMinusInfinity;
  *sum = 0;
  if constexpr (Kept) *moment = 0;
  if (begin >= end) return;
  const int64_t from = begin / 8 * 8;
  __m256 most = _mm256_set1_ps(kMinusInfinity);
  for (int64_t p = from; p < end; p += 8) most = _mm256_max_ps(most, _mm256_loadu_ps(scores + p));
  *max = max_lanes(most);
  const __m256 shift = _mm256_set1_ps(*max);
  __m256 total = _mm256_setzero_ps(), moments = _mm256_setzero_ps();
  for (int64_t p = from; p < end; p += 8) {
    const __m256 shifted = _mm256_sub_ps(_mm256_loadu_ps(scores + p), shift);
    const __m256 weight = exp8(shifted);
    total = _mm256_add_ps(total, weight);
    _mm256_storeu_ps(scores + p, weight);
    if constexpr (Kept) {  // an unseen key's −inf times its 0 is no 0
      const __m256 seen = _mm256_cmp_ps(shifted, _mm256_set1_ps(kMinusInfinity), _CMP_NEQ_UQ);
      moments = _mm256_add_ps(moments, _mm256_and_ps(seen, _mm256_mul_ps(weight, shifted)));
    }
  }
  *sum = sum_lanes(total);
  if constexpr (Kept) *moment = sum_lanes(moments);
}

// The first n numbers of a row that has them in [begin, end), up to whole vectors around it.
CUTAWAY_INLINE void keep_row(const float* row, int64_t begin, int64_t end, float unseen, int64_t n,
                             float* out) noexcept {
  const int64_t from = begin < end ? begin / 8 * 8 : kTilePositions;
  for (int64_t p = 0; p < n; p += 8) {
    const bool there = p >= from && p < end;
    store_first(out + p, n - p, there ? _mm256_loadu_ps(row + p) : _mm256_set1_ps(unseen));
  }
}

// The keys that some row of a call sees, and those that every row sees.
template <int R>
struct Seen {
  explicit Seen(const AttentionTileArgs& args, int64_t r0) noexcept {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      begin[r] = args.begin[r0 + r];
      end[r] = args.end[r0 + r];
      if (begin[r] < end[r] && begin[r] < some_begin) some_begin = begin[r];
      if (begin[r] < end[r] && end[r] > some_end) some_end = end[r];
      if (begin[r] > all_begin) all_begin = begin[r];
      if (end[r] < all_end) all_end = end[r];
    }
  }
  // Calls one(r, begin, end) for what row r sees before what all see, all(begin, end), and one()
  // again for what it sees after: every row's keys in order.
  template <typename One, typename All>
  void in_order(const One& one, const All& all) const noexcept {
    const bool together = all_begin < all_end;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) one(r, begin[r], together ? all_begin : end[r]);
    if (!together) return;
    all(all_begin, all_end);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) one(r, all_end, end[r]);
  }

  int64_t begin[R], end[R];
  int64_t some_begin = kTilePositions, some_end = 0, all_begin = 0, all_end = kTilePositions;
};

template <KvType T, int R>
void plain_values(const AttentionTileArgs& args, const Seen<R>& seen, const float* const* weights,
                  float* const* out) noexcept {
  const auto* v = static_cast<const Element<T>*>(args.tile.v);
  const int64_t ahead = bytes_ahead(args.tile.v, args.next.v);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    std::memset(out[r], 0, static_cast<size_t>(args.d_v) * sizeof(float));
  }
  seen.in_order(
      [&](int r, int64_t begin, int64_t end) noexcept {
        add_plain_values<T, 1>(v, args.d_v, weights + r, begin, end, out + r, ahead);
      },
      [&](int64_t begin, int64_t end) noexcept {
        add_plain_values<T, R>(v, args.d_v, weights, begin, end, out, ahead);
      });
}

template <KvType T, int R>
void quantised_values(const AttentionTileArgs& args, const Seen<R>& seen,
                      const float* const* weights, float* const* out) noexcept {
  const int64_t blocks = kv_blocks(args.d_v);
  const int64_t stride = T == KvType::kQ8 ? args.d_v : blocks * kHalfBlock;
  constexpr int64_t kPerBlock = T == KvType::kQ8 ? kKvBlock : kHalfBlock;
  const auto* v = static_cast<const Element<T>*>(args.tile.v);
  const auto* next = static_cast<const char*>(args.next.v == nullptr ? args.tile.v : args.next.v);
  const int64_t ahead = bytes_ahead(args.tile.v, args.next.v);
  const uint16_t* scales = tile_scales(T, args.tile.v, args.d_v);
  float scale[kMaxKvBlocks * kTilePositions], min[kMaxKvBlocks * kTilePositions];
  transpose_scales(scales, blocks, ahead, scale);
  if constexpr (T == KvType::kQ4) {
    transpose_scales(scales + kTilePositions * blocks, blocks, ahead, min);
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t n = args.d_v - b * kKvBlock < kKvBlock ? args.d_v - b * kKvBlock : kKvBlock;
    float scaled[R][kTilePositions];
    const float* block_weights[R];
    float* block_out[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      block_weights[r] = scaled[r];
      block_out[r] = out[r] + b * kKvBlock;
      scale_weights(weights[r], scale + b * kTilePositions, seen.begin[r], seen.end[r], scaled[r]);
      __m256 start = _mm256_setzero_ps();
      if constexpr (T == KvType::kQ4) {
        start = _mm256_set1_ps(
            weighted_min(weights[r], min + b * kTilePositions, seen.begin[r], seen.end[r]));
      }
      for (int64_t i = 0; i < n; i += 8) store_first(block_out[r] + i, n - i, start);
    }
    const Element<T>* block = v + b * kPerBlock;
    const char* fetched = next + b * kPerBlock * kTilePositions;
    seen.in_order(
        [&](int r, int64_t begin, int64_t end) noexcept {
          add_block<T, 1>(block, stride, block_weights + r, begin, end, block_out + r, n, fetched);
        },
        [&](int64_t begin, int64_t end) noexcept {
          add_block<T, R>(block, stride, block_weights, begin, end, block_out, n, fetched);
        });
  }
}

template <KvType T, int R>
void attend(const AttentionTileArgs& args, int64_t r0) noexcept {
  const Seen<R> seen(args, r0);
  const float* q[R];
  const float* sums[R] = {};
  float query_sums[R][kMaxKvBlocks];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    q[r] = args.q[r0 + r];
    if constexpr (T == KvType::kQ4) {
      block_sums(q[r], args.d_k, query_sums[r]);
      sums[r] = query_sums[r];
    }
  }
  float scores[R][kTilePositions];
  constexpr int kBlocks = R == 1 ? 4 : R <= 3 ? 2 : 1;
  const int64_t block_end = (seen.some_end + kKeyLanes - 1) / kKeyLanes;
  int64_t block = seen.some_begin / kKeyLanes;
  for (; block + kBlocks <= block_end; block += kBlocks) {
    score_blocks<T, R, kBlocks>(args, q, sums, r0, block, scores);
  }
  for (; block < block_end; ++block) score_blocks<T, R, 1>(args, q, sums, r0, block, scores);

  const float* weights[R];
  float* out[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    weights[r] = scores[r];
    out[r] = args.out + (r0 + r) * args.d_v;
    const int64_t row = r0 + r;
    if (args.scores != nullptr && args.scores[row] != nullptr) {
      keep_row(scores[r], seen.begin[r], seen.end[r], kMinusInfinity, args.scores_n,
               args.scores[row]);
    }
    if (args.moment == nullptr) {
      soften<false>(scores[r], seen.begin[r], seen.end[r], args.max + row, args.sum + row, nullptr);
    } else {
      soften<true>(scores[r], seen.begin[r], seen.end[r], args.max + row, args.sum + row,
                   args.moment + row);
    }
    if (args.weights != nullptr && args.weights[row] != nullptr) {
      keep_row(scores[r], seen.begin[r], seen.end[r], 0, args.weights_n, args.weights[row]);
    }
  }
  if constexpr (is_quantised(T)) {
    quantised_values<T, R>(args, seen, weights, out);
  } else {
    plain_values<T, R>(args, seen, weights, out);
  }
}

template <KvType T, int R = kMaxRows>
void attend_rows(const AttentionTileArgs& args, int64_t r0) noexcept {
  for (; args.n - r0 >= R; r0 += R) attend<T, R>(args, r0);
  if constexpr (R > 1) {
    if (r0 < args.n) attend_rows<T, R - 1>(args, r0);
  }
}

// Integers nearest to (x − min) / scale, ties to even, held between low and high; 0 where no scale
// can be divided by.
CUTAWAY_INLINE __m256i quantise(__m256 x, float min, float scale, float low, float high) noexcept {
  if (!(scale > 0 && scale <= std::numeric_limits<float>::max())) return _mm256_setzero_si256();
  const __m256 steps = _mm256_div_ps(_mm256_sub_ps(x, _mm256_set1_ps(min)), _mm256_set1_ps(scale));
  const __m256 inside =
      _mm256_min_ps(_mm256_max_ps(steps, _mm256_set1_ps(low)), _mm256_set1_ps(high));
  return _mm256_cvtps_epi32(_mm256_round_ps(inside, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

CUTAWAY_INLINE uint16_t to_half(float x) noexcept {
  return static_cast<uint16_t>(_mm_cvtsi128_si32(
      _mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)));
}
CUTAWAY_INLINE float from_half(uint16_t x) noexcept {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x)));
}

// A block of n ≤ 32 elements as four vectors. Lanes past it repeat its first element, so that its
// extremes are theirs too.
struct Block {
  Block(const float* from, int64_t n) noexcept {
    const __m256 first = _mm256_broadcast_ss(from);
    __m256 finite = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    for (int u = 0; u < 4; ++u) {
      const __m256 lanes = _mm256_castsi256_ps(first_lanes(n - 8 * u));
      x[u] =
          n > 8 * u ? _mm256_blendv_ps(first, load_first(from + 8 * u, n - 8 * u), lanes) : first;
      const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x[u]);
      finite = _mm256_and_ps(
          finite,
          _mm256_cmp_ps(magnitude, _mm256_set1_ps(std::numeric_limits<float>::max()), _CMP_LE_OQ));
    }
    all_finite = _mm256_movemask_ps(finite) == 255;
    high = max_lanes(_mm256_max_ps(_mm256_max_ps(x[0], x[1]), _mm256_max_ps(x[2], x[3])));
    low =
        -max_lanes(_mm256_xor_ps(_mm256_set1_ps(-0.0f), _mm256_min_ps(_mm256_min_ps(x[0], x[1]),
                                                                      _mm256_min_ps(x[2], x[3]))));
  }
  __m256 x[4];
  float low, high;
  bool all_finite;
};

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A block's quantised elements as kv_layout.h has them: q[0 … 32), its scale and, of kQ4, its min;
// elements past n are not meant to be stored.
CUTAWAY_INLINE void quantise_q8(const float* x, int64_t n, int8_t* q, uint16_t* d) noexcept {
  const Block block(x, n);
  const float most = (block.high > -block.low ? block.high : -block.low) + 0.0f;  // no −0
  *d = to_half(block.all_finite ? most / 127.0f : kNan);
  const float scale = from_half(*d);
  alignas(32) int32_t steps[8];
  for (int u = 0; u < 4; ++u) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(steps),
                       quantise(block.x[u], 0, scale, -127, 127));
    for (int i = 0; i < 8; ++i) q[8 * u + i] = static_cast<int8_t>(steps[i]);
  }
}

CUTAWAY_INLINE void quantise_q4(const float* x, int64_t n, uint8_t* q, uint16_t* d,
                                uint16_t* m) noexcept {
  const Block block(x, n);
  const float low = block.low + 0.0f, high = block.high + 0.0f;  // no −0, as in ref
  *m = to_half(block.all_finite ? low : 0.0f);
  const float min = from_half(*m);
  const float range = high - min;
  *d = to_half(block.all_finite ? (range > 0 ? range : 0.0f) / 15.0f : kNan);
  const float scale = from_half(*d);
#pragma GCC unroll 8
  for (int u = 0; u < 2; ++u) {
    alignas(32) int32_t lows[8], highs[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lows), quantise(block.x[u], min, scale, 0, 15));
    _mm256_store_si256(reinterpret_cast<__m256i*>(highs),
                       quantise(block.x[u + 2], min, scale, 0, 15));
    for (int i = 0; i < 8; ++i) {
      const int64_t j = 8 * u + i;
      const int32_t low_half = j < n ? lows[i] : 0, high_half = j + kHalfBlock < n ? highs[i] : 0;
      q[j] = static_cast<uint8_t>(low_half | high_half << 4);
    }
  }
}

// Stores one position's head into a tile: array index = place(per_position) + i · step for its
// i-th byte or scale.
struct Place {
  int64_t p, step;
  int64_t first(int64_t per_position) const noexcept {
    return step == 1 ? p * per_position : p / kKeyLanes * per_position * kKeyLanes + p % kKeyLanes;
  }
};

void store_quantised(KvType type, const float* x, int64_t d, const Place& place,
                     void* tile) noexcept {
  const int64_t blocks = kv_blocks(d);
  const int64_t per_position = type == KvType::kQ8 ? d : blocks * kHalfBlock;
  auto* bytes = static_cast<uint8_t*>(tile);
  auto* scales = reinterpret_cast<uint16_t*>(bytes + kv_element_bytes(type, d));
  bytes += place.first(per_position);
  scales += place.first(blocks);
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t n = d - b * kKvBlock < kKvBlock ? d - b * kKvBlock : kKvBlock;
    alignas(32) uint8_t q[kKvBlock];
    uint16_t* scale = scales + b * place.step;
    int64_t count = n;
    if (type == KvType::kQ8) {
      quantise_q8(x + b * kKvBlock, n, reinterpret_cast<int8_t*>(q), scale);
    } else {
      quantise_q4(x + b * kKvBlock, n, q, scale, scale + kTilePositions * blocks);
      count = kHalfBlock;
    }
    for (int64_t i = 0; i < count; ++i) bytes[i * place.step] = q[i];
    bytes += count * place.step;
  }
}

}  // namespace

void attention_tile(const AttentionTileArgs& args) noexcept {
  switch (args.tile.type) {
    case KvType::kF32:
      return attend_rows<KvType::kF32>(args, 0);
    case KvType::kF16:
      return attend_rows<KvType::kF16>(args, 0);
    case KvType::kQ8:
      return attend_rows<KvType::kQ8>(args, 0);
    case KvType::kQ4:
      return attend_rows<KvType::kQ4>(args, 0);
  }
}

void store_key(KvType type, const float* key, int64_t d, int64_t p, void* k) noexcept {
  if (is_quantised(type)) return store_quantised(type, key, d, {p, kKeyLanes}, k);
  const int64_t first = p / kKeyLanes * d * kKeyLanes + p % kKeyLanes;
  if (type == KvType::kF32) {
    float* to = static_cast<float*>(k) + first;
    for (int64_t i = 0; i < d; ++i) to[i * kKeyLanes] = key[i];
    return;
  }
  uint16_t* to = static_cast<uint16_t*>(k) + first;
  for (int64_t i = 0; i < d; i += 8) {
    uint16_t bits[8];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bits),
                     _mm256_cvtps_ph(load_first(key + i, d - i), _MM_FROUND_TO_NEAREST_INT));
    const int64_t count = d - i < 8 ? d - i : 8;
    for (int64_t j = 0; j < count; ++j) to[(i + j) * kKeyLanes] = bits[j];
  }
}

void store_value(KvType type, const float* value, int64_t d, int64_t p, void* v) noexcept {
  if (is_quantised(type)) return store_quantised(type, value, d, {p, 1}, v);
  if (type == KvType::kF32) {
    std::memcpy(static_cast<float*>(v) + p * d, value, static_cast<size_t>(d) * sizeof(float));
    return;
  }
  uint16_t* to = static_cast<uint16_t*>(v) + p * d;
  for (int64_t i = 0; i < d; i += 8) {
    const __m128i bits = _mm256_cvtps_ph(load_first(value + i, d - i), _MM_FROUND_TO_NEAREST_INT);
    const int64_t count = d - i < 8 ? d - i : 8;
    std::memcpy(to + i, &bits, static_cast<size_t>(count) * sizeof(uint16_t));
  }
}

void attention_merge(float tile_max, float tile_sum, const float* tile_out, int64_t d_v, float* max,
                     float* sum, float* out) noexcept {
  if (tile_sum == 0) return;  // the tile showed nothing (one visible key alone gives 1)
  const float merged = tile_max > *max ? tile_max : *max;
  const __m256 shifted = _mm256_setr_ps(*max - merged, tile_max - merged, 0, 0, 0, 0, 0, 0);
  const __m256 factors = exp8(shifted);
  const __m256 keep = _mm256_broadcastss_ps(_mm256_castps256_ps128(factors));
  const __m256 take = _mm256_permutevar8x32_ps(factors, _mm256_set1_epi32(1));
  *max = merged;
  *sum = _mm256_cvtss_f32(keep) * *sum + _mm256_cvtss_f32(take) * tile_sum;
  for (int64_t i = 0; i < d_v; i += 8) {
    const __m256 kept = _mm256_mul_ps(load_first(out + i, d_v - i), keep);
    store_first(out + i, d_v - i, _mm256_fmadd_ps(load_first(tile_out + i, d_v - i), take, kept));
  }
}

void attention_finish(float sum, int64_t d_v, float* out) noexcept {
  const __m256 divisor = _mm256_set1_ps(sum);
  for (int64_t i = 0; i < d_v; i += 8) {
    store_first(out + i, d_v - i, _mm256_div_ps(load_first(out + i, d_v - i), divisor));
  }
}

namespace {

// Puts a value into the k largest so far; those before it that are equal stay before it.
CUTAWAY_INLINE void insert(float candidate, int64_t at_index, int64_t k, int32_t* index,
                           float* value) noexcept {
  if (!(candidate > value[k - 1])) return;
  int64_t at = k - 1;
  for (; at > 0 && candidate > value[at - 1]; --at) {
    value[at] = value[at - 1];
    index[at] = index[at - 1];
  }
  value[at] = candidate;
  index[at] = static_cast<int32_t>(at_index);
}

// A number that at least k of 16 lanes reach: the k-th largest of them.
CUTAWAY_INLINE float reached_by(__m256 low, __m256 high, int64_t k) noexcept {
  alignas(32) float value[16];
  _mm256_store_ps(value, low);
  _mm256_store_ps(value + 8, high);
  float least = 0;
  for (const float own : value) {
    const __m256 x = _mm256_set1_ps(own);
    const int reach = __builtin_popcount(
        static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(low, x, _CMP_GE_OQ)) |
                              _mm256_movemask_ps(_mm256_cmp_ps(high, x, _CMP_GE_OQ)) << 8));
    if (reach >= k && own > least) least = own;
  }
  return least;
}

}  // namespace

void attention_top(const float* weights, const float* factor, int64_t tiles, int64_t k,
                   TopKeys& out) noexcept {
  __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
  for (int64_t t = 0; t < tiles; ++t) {
    const __m256 by = _mm256_broadcast_ss(factor + t);
    const float* at = weights + t * kTilePositions;
    for (int64_t p = 0; p < kTilePositions; p += 16) {
      low = _mm256_max_ps(low, _mm256_mul_ps(_mm256_loadu_ps(at + p), by));
      high = _mm256_max_ps(high, _mm256_mul_ps(_mm256_loadu_ps(at + p + 8), by));
    }
  }
  // One of each lane reaches it: so do k values at least, if as many are above 0.
  const __m256 bound = _mm256_set1_ps(reached_by(low, high, k));
  for (int64_t i = 0; i < kMaxTopKeys; ++i) {
    out.index[i] = -1;
    out.value[i] = 0;
  }
  for (int64_t t = 0; t < tiles; ++t) {
    const __m256 by = _mm256_broadcast_ss(factor + t);
    for (int64_t p = t * kTilePositions; p < (t + 1) * kTilePositions; p += 8) {
      const __m256 values = _mm256_mul_ps(_mm256_loadu_ps(weights + p), by);
      const int above = _mm256_movemask_ps(_mm256_cmp_ps(values, bound, _CMP_GE_OQ));
      if (above == 0) continue;
      alignas(32) float lanes[8];
      _mm256_store_ps(lanes, values);
      for (int rest = above; rest != 0; rest &= rest - 1) {
        const int i = __builtin_ctz(static_cast<unsigned>(rest));
        insert(lanes[i], p + i, k, out.index, out.value);
      }
    }
  }
}

}  // namespace cutaway::kernels::avx2
