// What avx2_attention.cc does per type of the cache: products of queries with keys, weighted sums
// of values. Internal to x86/.
//
// The order of a row's operations does not depend on R, the rows that share what is loaded. A
// quantised block is summed over its elements (keys) or positions (values) as it is stored, small
// integers; its scale then comes in once: Σ q·(d·t + m) = d·Σ q·t + m·Σ q, and for values
// Σ w·(d·t + m) = Σ (w·d)·t + Σ w·m.
#pragma once

#include "kernels/x86/avx2.h"

namespace cutaway::kernels::avx2 {

constexpr int64_t kMaxKvBlocks = kMaxHeadSize / kKvBlock;
constexpr int64_t kHalfBlock = kKvBlock / 2;

constexpr bool is_quantised(KvType type) { return type == KvType::kQ8 || type == KvType::kQ4; }
template <KvType T>
using Element =
    std::conditional_t<T == KvType::kF32, float,
                       std::conditional_t<T == KvType::kF16, uint16_t,
                                          std::conditional_t<T == KvType::kQ8, int8_t, uint8_t>>>;

// Eight consecutive elements of a tile as f32.
CUTAWAY_INLINE __m256 load8(const float* p) noexcept { return _mm256_loadu_ps(p); }
CUTAWAY_INLINE __m256 load8(const uint16_t* p) noexcept { return load_halves(p); }
CUTAWAY_INLINE __m256 load8(const int8_t* p) noexcept {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// The halves of eight kQ4 bytes.
CUTAWAY_INLINE __m256i load_nibbles(const uint8_t* p) noexcept {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
CUTAWAY_INLINE __m256 low_halves(__m256i bytes) noexcept {
  return _mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(15)));
}
CUTAWAY_INLINE __m256 high_halves(__m256i bytes) noexcept {
  return _mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 4));
}

// The scales of a tile of d elements per position: array 0, then 1, of 64 · kv_blocks(d).
CUTAWAY_INLINE const uint16_t* tile_scales(KvType type, const void* tile, int64_t d) noexcept {
  return reinterpret_cast<const uint16_t*>(static_cast<const uint8_t*>(tile) +
                                           kv_element_bytes(type, d));
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

// Σ q over each block of a query, which is what a kQ4 key's min is multiplied with.
CUTAWAY_INLINE void block_sums(const float* q, int64_t d, float* sums) noexcept {
  for (int64_t i = 0; i < d; i += kKvBlock) {
    __m256 sum = load_first(q + i, d - i);
    for (int64_t j = 8; j < kKvBlock && i + j < d; j += 8) {
      sum = _mm256_add_ps(sum, load_first(q + i + j, d - i - j));
    }
    sums[i / kKvBlock] = sum_lanes(sum);
  }
}

// acc[r][b] += q_r[i] · key i of 16 positions of block b, for a vector pair of keys each.
template <int R, int B>
CUTAWAY_INLINE void add_products(const float* const (&q)[R], int64_t i, int b, __m256 k0, __m256 k1,
                                 __m256 (&acc)[R][B][2]) noexcept {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const __m256 value = _mm256_broadcast_ss(q[r] + i);
    acc[r][b][0] = _mm256_fmadd_ps(value, k0, acc[r][b][0]);
    acc[r][b][1] = _mm256_fmadd_ps(value, k1, acc[r][b][1]);
  }
}

template <int R, int B>
CUTAWAY_INLINE void clear(__m256 (&acc)[R][B][2]) noexcept {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) acc[r][b][0] = acc[r][b][1] = _mm256_setzero_ps();
  }
}

// acc[r][b] = q_r · k for the 16 positions of each of the B key blocks from `block` on.
template <KvType T, int R, int B>
CUTAWAY_INLINE void plain_products(const void* k, int64_t d, int64_t block, int64_t ahead,
                                   const float* const (&q)[R], __m256 (&acc)[R][B][2]) noexcept {
  const auto* keys = static_cast<const Element<T>*>(k) + block * d * kKeyLanes;
  clear(acc);
  for (int64_t i = 0; i < d; ++i) {
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) {
      const Element<T>* at = keys + (b * d + i) * kKeyLanes;
      if constexpr (R <= kFewRows) fetch(at, ahead);
      add_products(q, i, b, load8(at), load8(at + 8), acc);
    }
  }
}

// Of one quantised block of n elements: acc[r][b] = Σ q_r[i] · t, t the stored integers.
template <KvType T, int R, int B>
CUTAWAY_INLINE void stored_products(const Element<T>* keys, int64_t step_b, int64_t n,
                                    int64_t ahead, const float* const (&q)[R],
                                    __m256 (&acc)[R][B][2]) noexcept {
  clear(acc);
  const int64_t bytes = T == KvType::kQ8 || n < kHalfBlock ? n : kHalfBlock;  // per position
  for (int64_t i = 0; i < bytes; ++i) {
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) {
      const Element<T>* at = keys + b * step_b + i * kKeyLanes;
      if constexpr (R <= kFewRows) {
        if (i % 4 == 0) fetch(at, ahead);  // a line holds four
      }
      if constexpr (T == KvType::kQ8) {
        add_products(q, i, b, load8(at), load8(at + 8), acc);
      } else {
        const __m256i bytes0 = load_nibbles(at), bytes1 = load_nibbles(at + 8);
        add_products(q, i, b, low_halves(bytes0), low_halves(bytes1), acc);
        if (i + kHalfBlock < n) {
          add_products(q, i + kHalfBlock, b, high_halves(bytes0), high_halves(bytes1), acc);
        }
      }
    }
  }
}

// plain_products for quantised keys; sums[r]: block_sums of q_r (kQ4 alone looks at them).
template <KvType T, int R, int B>
CUTAWAY_INLINE void scaled_products(const void* k, int64_t d, int64_t block, int64_t ahead,
                                    const float* const (&q)[R], const float* const (&sums)[R],
                                    __m256 (&acc)[R][B][2]) noexcept {
  const int64_t blocks = kv_blocks(d);
  const int64_t per_position = T == KvType::kQ8 ? d : blocks * kHalfBlock;
  constexpr int64_t kPerBlock = T == KvType::kQ8 ? kKvBlock : kHalfBlock;
  const auto* keys = static_cast<const Element<T>*>(k) + block * per_position * kKeyLanes;
  const uint16_t* scales = tile_scales(T, k, d) + block * blocks * kKeyLanes;
  clear(acc);
  for (int64_t s = 0; s < blocks; ++s) {
    const float* at[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) at[r] = q[r] + s * kKvBlock;
    const int64_t n = d - s * kKvBlock < kKvBlock ? d - s * kKvBlock : kKvBlock;
    __m256 part[R][B][2];
    stored_products<T, R, B>(keys + s * kPerBlock * kKeyLanes, per_position * kKeyLanes, n, ahead,
                             at, part);
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) {
#pragma GCC unroll 8
      for (int v = 0; v < 2; ++v) {
        const uint16_t* scale = scales + (b * blocks + s) * kKeyLanes + 8 * v;
        if constexpr (R <= kFewRows) fetch(scale, ahead);
        const __m256 d8 = load_halves(scale);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) acc[r][b][v] = _mm256_fmadd_ps(part[r][b][v], d8, acc[r][b][v]);
        if constexpr (T == KvType::kQ4) {
          const uint16_t* min = scale + kTilePositions * blocks;
          if constexpr (R <= kFewRows) fetch(min, ahead);
          const __m256 m8 = load_halves(min);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            acc[r][b][v] = _mm256_fmadd_ps(_mm256_broadcast_ss(sums[r] + s), m8, acc[r][b][v]);
          }
        }
      }
    }
  }
}

// out[r][i … i + 8·V) += Σ_p weight[r][p] · v[p][…] for p in [begin, end), in order.
template <KvType T, int R, int V>
CUTAWAY_INLINE void add_vectors(const Element<T>* v, int64_t d, const float* const* weights,
                                int64_t begin, int64_t end, float* const* out, int64_t i,
                                int64_t ahead) noexcept {
  __m256 acc[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int u = 0; u < V; ++u) acc[r][u] = _mm256_loadu_ps(out[r] + i + 8 * u);
  }
  for (int64_t p = begin; p < end; ++p) {
    __m256 value[V];
    if constexpr (R <= kFewRows) fetch(v + p * d + i, ahead);
#pragma GCC unroll 8
    for (int u = 0; u < V; ++u) value[u] = load8(v + p * d + i + 8 * u);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256 weight = _mm256_broadcast_ss(weights[r] + p);
#pragma GCC unroll 8
      for (int u = 0; u < V; ++u) acc[r][u] = _mm256_fmadd_ps(weight, value[u], acc[r][u]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int u = 0; u < V; ++u) _mm256_storeu_ps(out[r] + i + 8 * u, acc[r][u]);
  }
}

// The first `count` < 8 elements; nothing beyond is read.
template <typename E>
CUTAWAY_INLINE __m256 load_part(const E* p, int64_t count) noexcept {
  alignas(32) E part[8] = {};
  std::memcpy(part, p, static_cast<size_t>(count) * sizeof(E));
  return load8(part);
}

// out[r] += Σ_p weight[r][p] · v[p] for p in [begin, end), in order; kF32 and kF16.
template <KvType T, int R>
void add_plain_values(const Element<T>* v, int64_t d, const float* const* weights, int64_t begin,
                      int64_t end, float* const* out, int64_t ahead) noexcept {
  if (begin >= end) return;
  constexpr int kVectors = R == 1 ? 8 : R <= 3 ? 4 : 2;
  int64_t i = 0;
  for (; i + 8 * kVectors <= d; i += 8 * kVectors) {
    add_vectors<T, R, kVectors>(v, d, weights, begin, end, out, i, ahead);
  }
  for (; i + 8 <= d; i += 8) add_vectors<T, R, 1>(v, d, weights, begin, end, out, i, ahead);
  if (i == d) return;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    __m256 acc = load_first(out[r] + i, d - i);
    for (int64_t p = begin; p < end; ++p) {
      acc = _mm256_fmadd_ps(_mm256_broadcast_ss(weights[r] + p), load_part(v + p * d + i, d - i),
                            acc);
    }
    store_first(out[r] + i, d - i, acc);
  }
}

// The V vectors from vector `first` on (of a block's four) of out[r] += Σ_p weight[r][p] · t[p],
// t the block's stored integers at v + p · stride. Of n ≤ 32 elements; lanes past them are loaded
// (a tile's scales follow its elements, so that eight bytes are always there) and not stored.
template <KvType T, int R, int V>
CUTAWAY_INLINE void add_stored(const Element<T>* v, int64_t stride, const float* const* weights,
                               int64_t begin, int64_t end, float* const* out, int64_t n, int first,
                               const char* next) noexcept {
  __m256 acc[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int u = 0; u < V; ++u) {
      acc[r][u] = load_first(out[r] + 8 * (first + u), n - 8 * (first + u));
    }
  }
  for (int64_t p = begin; p < end; ++p) {
    const Element<T>* at = v + p * stride;
    if constexpr (R <= kFewRows) {
      _mm_prefetch(next + p * (T == KvType::kQ8 ? kKvBlock : kHalfBlock), _MM_HINT_T0);
    }
    __m256 weight[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) weight[r] = _mm256_broadcast_ss(weights[r] + p);
#pragma GCC unroll 8
    for (int u = 0; u < V; ++u) {
      __m256 value;
      if constexpr (T == KvType::kQ8) {
        value = load8(at + 8 * (first + u));
      } else {
        const __m256i bytes = load_nibbles(at + 8 * ((first + u) % 2));
        value = first + u < 2 ? low_halves(bytes) : high_halves(bytes);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][u] = _mm256_fmadd_ps(weight[r], value, acc[r][u]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int u = 0; u < V; ++u) {
      store_first(out[r] + 8 * (first + u), n - 8 * (first + u), acc[r][u]);
    }
  }
}

// The same for the whole block. `next`: the next tile's elements, from where this block's turn
// fetches on.
template <KvType T, int R>
void add_block(const Element<T>* v, int64_t stride, const float* const* weights, int64_t begin,
               int64_t end, float* const* out, int64_t n, const char* next) noexcept {
  if (begin >= end) return;
  if (n < kKvBlock) {
    // A constant vector number each, so that a half-byte's half is known where it is loaded.
    add_stored<T, R, 1>(v, stride, weights, begin, end, out, n, 0, next);
    if (n > 8) add_stored<T, R, 1>(v, stride, weights, begin, end, out, n, 1, next);
    if (n > 16) add_stored<T, R, 1>(v, stride, weights, begin, end, out, n, 2, next);
    if (n > 24) add_stored<T, R, 1>(v, stride, weights, begin, end, out, n, 3, next);
  } else if constexpr (R <= 3) {
    add_stored<T, R, 4>(v, stride, weights, begin, end, out, kKvBlock, 0, next);
  } else {
    add_stored<T, R, 2>(v, stride, weights, begin, end, out, kKvBlock, 0, next);
    add_stored<T, R, 2>(v, stride, weights, begin, end, out, kKvBlock, 2, next);
  }
}

// One array of a value tile's scales as f32, [b][64], from its [64][blocks] halves.
CUTAWAY_INLINE void transpose_scales(const uint16_t* halves, int64_t blocks, int64_t ahead,
                                     float* out) noexcept {
  for (int64_t line = 0; line < 2 * blocks; ++line) fetch(halves + 32 * line, ahead);
  if (blocks == 2) {
    for (int64_t p = 0; p < kTilePositions; p += 8) {
      const __m256 a = load_halves(halves + 2 * p), b = load_halves(halves + 2 * p + 8);
      const auto pick = [](__m256 mixed) noexcept {
        return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xD8));
      };
      _mm256_storeu_ps(out + p, pick(_mm256_shuffle_ps(a, b, 0x88)));
      _mm256_storeu_ps(out + kTilePositions + p, pick(_mm256_shuffle_ps(a, b, 0xDD)));
    }
    return;
  }
  for (int64_t i = 0; i < kTilePositions * blocks; i += 8) {
    alignas(32) float eight[8];
    _mm256_store_ps(eight, load_halves(halves + i));
    int64_t p = i / blocks, b = i % blocks;
    for (const float scale : eight) {
      out[b * kTilePositions + p] = scale;
      if (++b == blocks) b = 0, ++p;
    }
  }
}

// to[p] = weights[p] · scale[p], in whole vectors around [begin, end).
CUTAWAY_INLINE void scale_weights(const float* weights, const float* scale, int64_t begin,
                                  int64_t end, float* to) noexcept {
  if (begin >= end) return;
  for (int64_t p = begin / 8 * 8; p < end; p += 8) {
    _mm256_storeu_ps(to + p,
                     _mm256_mul_ps(_mm256_loadu_ps(weights + p), _mm256_loadu_ps(scale + p)));
  }
}

// Σ weights[p] · min[p] over [begin, end), in lanes of fixed positions. What lies around may be
// anything, and stays out.
CUTAWAY_INLINE float weighted_min(const float* weights, const float* min, int64_t begin,
                                  int64_t end) noexcept {
  if (begin >= end) return 0;
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i before = _mm256_set1_epi32(static_cast<int32_t>(begin));
  const __m256i after = _mm256_set1_epi32(static_cast<int32_t>(end));
  __m256 sum = _mm256_setzero_ps();
  for (int64_t first = begin / 8 * 8; first < end; first += 8) {
    const __m256i p = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int32_t>(first)), lanes);
    const __m256 seen = _mm256_castsi256_ps(
        _mm256_andnot_si256(_mm256_cmpgt_epi32(before, p), _mm256_cmpgt_epi32(after, p)));
    sum = _mm256_fmadd_ps(_mm256_loadu_ps(weights + first),
                          _mm256_and_ps(seen, _mm256_loadu_ps(min + first)), sum);
  }
  return sum_lanes(sum);
}

}  // namespace cutaway::kernels::avx2
