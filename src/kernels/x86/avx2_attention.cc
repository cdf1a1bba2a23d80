// Attention over one tile of keys. Up to six query rows share each key and value that is loaded; a
// row's own arithmetic is the same in any company: over d (scores) and over positions (values) in
// order, one lane per key and per element of the output.
#include <limits>

#include "kernels/x86/avx2.h"

namespace cutaway::kernels::avx2 {
namespace {

constexpr int kMaxRows = 6;  // × 2 vectors = 12 sums
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Eight consecutive elements of a page; `Element` is uint16_t (f16) or float.
CUTAWAY_INLINE __m256 load8(const uint16_t* p) noexcept { return load_halves(p); }
CUTAWAY_INLINE __m256 load8(const float* p) noexcept { return _mm256_loadu_ps(p); }

// The first `count` < 8 of them; nothing beyond is read.
template <typename Element>
CUTAWAY_INLINE __m256 load_part(const Element* p, int64_t count) noexcept {
  alignas(32) Element part[8] = {};
  std::memcpy(part, p, static_cast<size_t>(count) * sizeof(Element));
  return load8(part);
}

// With few rows a tile is used once and comes from memory: the line at the same place of the next
// tile is fetched while this one is worked on (tiles of one head are a page apart, where no
// hardware prefetcher follows). Bytes from a tile to the next; 0 asks for the line at hand, which
// costs nothing.
constexpr int kFewRows = 3;
CUTAWAY_INLINE int64_t bytes_ahead(const void* now, const void* next) noexcept {
  return next == nullptr ? 0 : reinterpret_cast<intptr_t>(next) - reinterpret_cast<intptr_t>(now);
}
CUTAWAY_INLINE void fetch(const void* now, int64_t ahead) noexcept {
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<intptr_t>(now) + ahead), _MM_HINT_T0);
}

// Scores of R rows and the B key blocks from `block` on, −inf where a row does not see.
template <typename Element, int R, int B>
CUTAWAY_INLINE void score_blocks(const AttentionTileArgs& args, int64_t r0, int64_t block,
                                 float (&scores)[R][kTilePositions]) noexcept {
  const Element* keys[B];
  for (int b = 0; b < B; ++b) {
    keys[b] = static_cast<const Element*>(args.tile.k) + (block + b) * args.d_k * kKeyLanes;
  }
  const float* q[R];
  for (int r = 0; r < R; ++r) q[r] = args.q[r0 + r];
  __m256 acc[R][B][2];
  for (int r = 0; r < R; ++r) {
    for (int b = 0; b < B; ++b) acc[r][b][0] = acc[r][b][1] = _mm256_setzero_ps();
  }
  const int64_t ahead = bytes_ahead(args.tile.k, args.next.k);
  for (int64_t i = 0; i < args.d_k; ++i) {
    for (int b = 0; b < B; ++b) {
      if constexpr (R <= kFewRows) fetch(keys[b] + i * kKeyLanes, ahead);
      const __m256 k0 = load8(keys[b] + i * kKeyLanes);
      const __m256 k1 = load8(keys[b] + i * kKeyLanes + 8);
      for (int r = 0; r < R; ++r) {
        const __m256 value = _mm256_broadcast_ss(q[r] + i);
        acc[r][b][0] = _mm256_fmadd_ps(value, k0, acc[r][b][0]);
        acc[r][b][1] = _mm256_fmadd_ps(value, k1, acc[r][b][1]);
      }
    }
  }
  const __m256 scale = _mm256_set1_ps(args.scale);
  const __m256 cap = _mm256_set1_ps(args.soft_cap);
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (int r = 0; r < R; ++r) {
    const __m256i begin = _mm256_set1_epi32(args.begin[r0 + r]);
    const __m256i end = _mm256_set1_epi32(args.end[r0 + r]);
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
CUTAWAY_INLINE void soften(float* scores, int64_t begin, int64_t end, float* max,
                           float* sum) noexcept {
  *max = kMinusInfinity;
  *sum = 0;
  if (begin >= end) return;
  const int64_t from = begin / 8 * 8;
  __m256 most = _mm256_set1_ps(kMinusInfinity);
  for (int64_t p = from; p < end; p += 8) most = _mm256_max_ps(most, _mm256_loadu_ps(scores + p));
  *max = max_lanes(most);
  const __m256 shift = _mm256_set1_ps(*max);
  __m256 total = _mm256_setzero_ps();
  for (int64_t p = from; p < end; p += 8) {
    const __m256 weight = exp8(_mm256_sub_ps(_mm256_loadu_ps(scores + p), shift));
    total = _mm256_add_ps(total, weight);
    _mm256_storeu_ps(scores + p, weight);
  }
  *sum = sum_lanes(total);
}

// out[r][i … i + 8·V) += Σ_p weight[r][p] · v[p][…] for p in [begin, end), in order.
template <typename Element, int R, int V>
CUTAWAY_INLINE void add_vectors(const Element* v, int64_t d_v, const float* const* weights,
                                int64_t begin, int64_t end, float* const* out, int64_t i,
                                int64_t ahead) noexcept {
  __m256 acc[R][V];
  for (int r = 0; r < R; ++r) {
    for (int u = 0; u < V; ++u) acc[r][u] = _mm256_loadu_ps(out[r] + i + 8 * u);
  }
  for (int64_t p = begin; p < end; ++p) {
    __m256 value[V];
    if constexpr (R <= kFewRows) fetch(v + p * d_v + i, ahead);
    for (int u = 0; u < V; ++u) value[u] = load8(v + p * d_v + i + 8 * u);
    for (int r = 0; r < R; ++r) {
      const __m256 weight = _mm256_broadcast_ss(weights[r] + p);
      for (int u = 0; u < V; ++u) acc[r][u] = _mm256_fmadd_ps(weight, value[u], acc[r][u]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int u = 0; u < V; ++u) _mm256_storeu_ps(out[r] + i + 8 * u, acc[r][u]);
  }
}

template <typename Element, int R>
void add_values(const Element* v, int64_t d_v, const float* const* weights, int64_t begin,
                int64_t end, float* const* out, int64_t ahead) noexcept {
  if (begin >= end) return;
  constexpr int kVectors = R == 1 ? 8 : R <= 3 ? 4 : 2;
  int64_t i = 0;
  for (; i + 8 * kVectors <= d_v; i += 8 * kVectors) {
    add_vectors<Element, R, kVectors>(v, d_v, weights, begin, end, out, i, ahead);
  }
  for (; i + 8 <= d_v; i += 8)
    add_vectors<Element, R, 1>(v, d_v, weights, begin, end, out, i, ahead);
  if (i == d_v) return;
  for (int r = 0; r < R; ++r) {
    __m256 acc = load_first(out[r] + i, d_v - i);
    for (int64_t p = begin; p < end; ++p) {
      acc = _mm256_fmadd_ps(_mm256_broadcast_ss(weights[r] + p),
                            load_part(v + p * d_v + i, d_v - i), acc);
    }
    store_first(out[r] + i, d_v - i, acc);
  }
}

template <typename Element, int R>
void attend(const AttentionTileArgs& args, int64_t r0) noexcept {
  // The keys that some row sees, and those that every row sees.
  int64_t some_begin = kTilePositions, some_end = 0, all_begin = 0, all_end = kTilePositions;
  for (int r = 0; r < R; ++r) {
    const int64_t begin = args.begin[r0 + r];
    const int64_t end = args.end[r0 + r];
    if (begin < end && begin < some_begin) some_begin = begin;
    if (begin < end && end > some_end) some_end = end;
    if (begin > all_begin) all_begin = begin;
    if (end < all_end) all_end = end;
  }
  float scores[R][kTilePositions];
  constexpr int kBlocks = R == 1 ? 4 : R <= 3 ? 2 : 1;
  const int64_t block_end = (some_end + kKeyLanes - 1) / kKeyLanes;
  int64_t block = some_begin / kKeyLanes;
  for (; block + kBlocks <= block_end; block += kBlocks) {
    score_blocks<Element, R, kBlocks>(args, r0, block, scores);
  }
  for (; block < block_end; ++block) score_blocks<Element, R, 1>(args, r0, block, scores);

  const float* weights[R];
  float* out[R];
  for (int r = 0; r < R; ++r) {
    weights[r] = scores[r];
    out[r] = args.out + (r0 + r) * args.d_v;
    std::memset(out[r], 0, static_cast<size_t>(args.d_v) * sizeof(float));
    soften(scores[r], args.begin[r0 + r], args.end[r0 + r], args.max + r0 + r, args.sum + r0 + r);
  }
  const auto* v = static_cast<const Element*>(args.tile.v);
  const int64_t ahead = bytes_ahead(args.tile.v, args.next.v);
  const bool together = all_begin < all_end;
  for (int r = 0; r < R; ++r) {
    const int64_t end = together ? all_begin : args.end[r0 + r];
    add_values<Element, 1>(v, args.d_v, weights + r, args.begin[r0 + r], end, out + r, ahead);
  }
  if (!together) return;
  add_values<Element, R>(v, args.d_v, weights, all_begin, all_end, out, ahead);
  for (int r = 0; r < R; ++r) {
    add_values<Element, 1>(v, args.d_v, weights + r, all_end, args.end[r0 + r], out + r, ahead);
  }
}

template <typename Element, int R>
void attend_rows(const AttentionTileArgs& args, int64_t r0) noexcept {
  for (; args.n - r0 >= R; r0 += R) attend<Element, R>(args, r0);
  if constexpr (R > 1) {
    if (r0 < args.n) attend_rows<Element, R - 1>(args, r0);
  }
}

}  // namespace

void attention_tile(const AttentionTileArgs& args) noexcept {
  if (args.tile.type == KvType::kF16) {
    attend_rows<uint16_t, kMaxRows>(args, 0);
  } else {
    attend_rows<float, kMaxRows>(args, 0);
  }
}

void store_key(KvType type, const float* key, int64_t d, int64_t p, void* k) noexcept {
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

}  // namespace cutaway::kernels::avx2
