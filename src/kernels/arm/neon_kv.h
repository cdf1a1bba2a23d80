// What neon_attention.cc does per type of the cache: products of queries with keys, weighted sums
// of values. Internal to arm/.
//
// A row's operations and their order do not depend on R, the rows that share what is loaded, and
// are those of x86/avx2_kv.h: quantised blocks are summed as the small integers that are stored,
// then scaled once, Σ q·(d·t + m) = d·Σ q·t + m·Σ q and Σ w·(d·t + m) = Σ (w·d)·t + Σ w·m.
#pragma once

#include "kernels/arm/neon.h"

namespace cutaway::kernels::neon {

constexpr int64_t kMaxKvBlocks = kMaxHeadSize / kKvBlock;
constexpr int64_t kHalfBlock = kKvBlock / 2;
constexpr int kKeyVectors = kKeyLanes / 4;

constexpr bool is_quantised(KvType type) { return type == KvType::kQ8 || type == KvType::kQ4; }
template <KvType T>
using Element =
    std::conditional_t<T == KvType::kF32, float,
                       std::conditional_t<T == KvType::kF16, uint16_t,
                                          std::conditional_t<T == KvType::kQ8, int8_t, uint8_t>>>;

// Four and sixteen consecutive elements of a tile as f32.
CUTAWAY_INLINE float32x4_t load4(const float* p) noexcept { return vld1q_f32(p); }
CUTAWAY_INLINE float32x4_t load4(const uint16_t* p) noexcept { return load_halves(p); }

CUTAWAY_INLINE void load16(const float* p, float32x4_t (&out)[4]) noexcept {
#pragma GCC unroll 16
  for (int v = 0; v < 4; ++v) out[v] = vld1q_f32(p + 4 * v);
}
CUTAWAY_INLINE void load16(const uint16_t* p, float32x4_t (&out)[4]) noexcept {
#pragma GCC unroll 16
  for (int v = 0; v < 4; ++v) out[v] = load_halves(p + 4 * v);
}
CUTAWAY_INLINE void widen(int8x16_t bytes, float32x4_t (&out)[4]) noexcept {
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
  const int16x8_t high = vmovl_high_s8(bytes);
  out[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
  out[1] = vcvtq_f32_s32(vmovl_high_s16(low));
  out[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
  out[3] = vcvtq_f32_s32(vmovl_high_s16(high));
}
CUTAWAY_INLINE void load16(const int8_t* p, float32x4_t (&out)[4]) noexcept {
  widen(vld1q_s8(p), out);
}
// The low or the high halves of 16 kQ4 bytes.
CUTAWAY_INLINE void load16_halves(const uint8_t* p, bool high, float32x4_t (&out)[4]) noexcept {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint8x16_t halves = high ? vshrq_n_u8(bytes, 4) : vandq_u8(bytes, vdupq_n_u8(15));
  widen(vreinterpretq_s8_u8(halves), out);
}

// Sum of eight lanes in two vectors, as ((0+4)+(2+6)) + ((1+5)+(3+7)).
CUTAWAY_INLINE float sum_lanes(float32x4_t a, float32x4_t b) noexcept {
  const float32x4_t s = vaddq_f32(a, b);
  const float32x2_t t = vadd_f32(vget_low_f32(s), vget_high_f32(s));
  return vget_lane_f32(t, 0) + vget_lane_f32(t, 1);
}

// The lanes of positions first … first + 3 that lie in [begin, end).
CUTAWAY_INLINE uint32x4_t seen_lanes(int64_t first, int64_t begin, int64_t end) noexcept {
  constexpr int32_t kLanes[4] = {0, 1, 2, 3};
  const int32x4_t p = vaddq_s32(vdupq_n_s32(static_cast<int32_t>(first)), vld1q_s32(kLanes));
  return vandq_u32(vcgeq_s32(p, vdupq_n_s32(static_cast<int32_t>(begin))),
                   vcltq_s32(p, vdupq_n_s32(static_cast<int32_t>(end))));
}

// The scales of a tile of d elements per position: array 0, then 1, of 64 · kv_blocks(d).
CUTAWAY_INLINE const uint16_t* tile_scales(KvType type, const void* tile, int64_t d) noexcept {
  return reinterpret_cast<const uint16_t*>(static_cast<const uint8_t*>(tile) +
                                           kv_element_bytes(type, d));
}

// With few rows a tile is used once and comes from memory: the line at the same place of the next
// tile is fetched while this one is worked on. Bytes from a tile to the next; 0 asks for the line
// at hand, which costs nothing.
constexpr int kFewRows = 3;
CUTAWAY_INLINE int64_t bytes_ahead(const void* now, const void* next) noexcept {
  return next == nullptr ? 0 : reinterpret_cast<intptr_t>(next) - reinterpret_cast<intptr_t>(now);
}
CUTAWAY_INLINE void fetch(const void* now, int64_t ahead) noexcept {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<intptr_t>(now) + ahead));
}

// Σ q over each block of a query, which is what a kQ4 key's min is multiplied with.
CUTAWAY_INLINE void block_sums(const float* q, int64_t d, float* sums) noexcept {
  for (int64_t i = 0; i < d; i += kKvBlock) {
    float32x4_t a = load_first(q + i, d - i);
    float32x4_t b = load_first(q + i + 4, d - i - 4);
    for (int64_t j = i + 8; j < i + kKvBlock && j < d; j += 8) {
      a = vaddq_f32(a, load_first(q + j, d - j));
      b = vaddq_f32(b, load_first(q + j + 4, d - j - 4));
    }
    sums[i / kKvBlock] = sum_lanes(a, b);
  }
}

template <int R, int B>
CUTAWAY_INLINE void clear(float32x4_t (&acc)[R][B][kKeyVectors]) noexcept {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int b = 0; b < B; ++b) {
#pragma GCC unroll 16
      for (int v = 0; v < kKeyVectors; ++v) acc[r][b][v] = vdupq_n_f32(0);
    }
  }
}

// acc[r][b] += q_r[i] · element i of 16 keys of block b.
template <int R, int B>
CUTAWAY_INLINE void add_products(const float* const (&q)[R], int64_t i, int b,
                                 const float32x4_t (&keys)[kKeyVectors],
                                 float32x4_t (&acc)[R][B][kKeyVectors]) noexcept {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const float value = q[r][i];
#pragma GCC unroll 16
    for (int v = 0; v < kKeyVectors; ++v) {
      acc[r][b][v] = vfmaq_n_f32(acc[r][b][v], keys[v], value);
    }
  }
}

// acc[r][b] = q_r · k for the 16 positions of each of the B key blocks from `block` on.
template <KvType T, int R, int B>
CUTAWAY_INLINE void plain_products(const void* k, int64_t d, int64_t block, int64_t ahead,
                                   const float* const (&q)[R],
                                   float32x4_t (&acc)[R][B][kKeyVectors]) noexcept {
  const auto* keys = static_cast<const Element<T>*>(k) + block * d * kKeyLanes;
  clear(acc);
  for (int64_t i = 0; i < d; ++i) {
#pragma GCC unroll 16
    for (int b = 0; b < B; ++b) {
      const Element<T>* at = keys + (b * d + i) * kKeyLanes;
      if constexpr (R <= kFewRows) fetch(at, ahead);
      float32x4_t key[kKeyVectors];
      load16(at, key);
      add_products(q, i, b, key, acc);
    }
  }
}

// Of one quantised block of n elements: acc[r][b] = Σ q_r[i] · t, t the stored integers.
template <KvType T, int R, int B>
CUTAWAY_INLINE void stored_products(const Element<T>* keys, int64_t step_b, int64_t n,
                                    int64_t ahead, const float* const (&q)[R],
                                    float32x4_t (&acc)[R][B][kKeyVectors]) noexcept {
  clear(acc);
  const int64_t bytes = T == KvType::kQ8 || n < kHalfBlock ? n : kHalfBlock;  // per position
  for (int64_t i = 0; i < bytes; ++i) {
#pragma GCC unroll 16
    for (int b = 0; b < B; ++b) {
      const Element<T>* at = keys + b * step_b + i * kKeyLanes;
      if constexpr (R <= kFewRows) {
        if (i % 4 == 0) fetch(at, ahead);  // a line holds four
      }
      float32x4_t key[kKeyVectors];
      if constexpr (T == KvType::kQ8) {
        load16(at, key);
        add_products(q, i, b, key, acc);
      } else {
        load16_halves(at, false, key);
        add_products(q, i, b, key, acc);
        if (i + kHalfBlock < n) {
          load16_halves(at, true, key);
          add_products(q, i + kHalfBlock, b, key, acc);
        }
      }
    }
  }
}

// plain_products for quantised keys; sums[r]: block_sums of q_r (kQ4 alone looks at them).
template <KvType T, int R, int B>
CUTAWAY_INLINE void scaled_products(const void* k, int64_t d, int64_t block, int64_t ahead,
                                    const float* const (&q)[R], const float* const (&sums)[R],
                                    float32x4_t (&acc)[R][B][kKeyVectors]) noexcept {
  const int64_t blocks = kv_blocks(d);
  const int64_t per_position = T == KvType::kQ8 ? d : blocks * kHalfBlock;
  constexpr int64_t kPerBlock = T == KvType::kQ8 ? kKvBlock : kHalfBlock;
  const auto* keys = static_cast<const Element<T>*>(k) + block * per_position * kKeyLanes;
  const uint16_t* scales = tile_scales(T, k, d) + block * blocks * kKeyLanes;
  clear(acc);
  for (int64_t s = 0; s < blocks; ++s) {
    const float* at[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) at[r] = q[r] + s * kKvBlock;
    const int64_t n = d - s * kKvBlock < kKvBlock ? d - s * kKvBlock : kKvBlock;
    float32x4_t part[R][B][kKeyVectors];
    stored_products<T, R, B>(keys + s * kPerBlock * kKeyLanes, per_position * kKeyLanes, n, ahead,
                             at, part);
#pragma GCC unroll 16
    for (int b = 0; b < B; ++b) {
      const uint16_t* scale = scales + (b * blocks + s) * kKeyLanes;
      const uint16_t* min = scale + kTilePositions * blocks;
      if constexpr (R <= kFewRows) fetch(scale, ahead);
      if constexpr (R <= kFewRows && T == KvType::kQ4) fetch(min, ahead);
#pragma GCC unroll 16
      for (int v = 0; v < kKeyVectors; ++v) {
        const float32x4_t d4 = load_halves(scale + 4 * v);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) acc[r][b][v] = vfmaq_f32(acc[r][b][v], part[r][b][v], d4);
        if constexpr (T == KvType::kQ4) {
          const float32x4_t m4 = load_halves(min + 4 * v);
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) acc[r][b][v] = vfmaq_n_f32(acc[r][b][v], m4, sums[r][s]);
        }
      }
    }
  }
}

// out[r][i … i + 4·V) += Σ_p weight[r][p] · v[p][…] for p in [begin, end), in order.
template <KvType T, int R, int V>
CUTAWAY_INLINE void add_vectors(const Element<T>* v, int64_t d, const float* const* weights,
                                int64_t begin, int64_t end, float* const* out, int64_t i,
                                int64_t ahead) noexcept {
  float32x4_t acc[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int u = 0; u < V; ++u) acc[r][u] = vld1q_f32(out[r] + i + 4 * u);
  }
  for (int64_t p = begin; p < end; ++p) {
    const Element<T>* at = v + p * d + i;
    if constexpr (R <= kFewRows) fetch(at, ahead);
    float weight[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) weight[r] = weights[r][p];
#pragma GCC unroll 16
    for (int u = 0; u < V; ++u) {
      const float32x4_t value = load4(at + 4 * u);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) acc[r][u] = vfmaq_n_f32(acc[r][u], value, weight[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int u = 0; u < V; ++u) vst1q_f32(out[r] + i + 4 * u, acc[r][u]);
  }
}

// The first `count` < 4 elements; nothing beyond is read.
template <typename E>
CUTAWAY_INLINE float32x4_t load_part(const E* p, int64_t count) noexcept {
  E part[4] = {};
  std::memcpy(part, p, static_cast<size_t>(count) * sizeof(E));
  return load4(part);
}

// out[r] += Σ_p weight[r][p] · v[p] for p in [begin, end), in order; kF32 and kF16.
template <KvType T, int R>
void add_plain_values(const Element<T>* v, int64_t d, const float* const* weights, int64_t begin,
                      int64_t end, float* const* out, int64_t ahead) noexcept {
  if (begin >= end) return;
  constexpr int kVectors = R == 1 ? 16 : R <= 3 ? 8 : 4;
  int64_t i = 0;
  for (; i + 4 * kVectors <= d; i += 4 * kVectors) {
    add_vectors<T, R, kVectors>(v, d, weights, begin, end, out, i, ahead);
  }
  for (; i + 4 <= d; i += 4) add_vectors<T, R, 1>(v, d, weights, begin, end, out, i, ahead);
  if (i == d) return;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    float32x4_t acc = load_first(out[r] + i, d - i);
    for (int64_t p = begin; p < end; ++p) {
      acc = vfmaq_n_f32(acc, load_part(v + p * d + i, d - i), weights[r][p]);
    }
    store_first(out[r] + i, d - i, acc);
  }
}

// The elements 16·h … of a block of n ≤ 32, H halves of it, of out[r] += Σ_p weight[r][p] · t[p],
// t the block's stored integers at v + p · stride. Lanes past n are loaded (a tile's scales follow
// its elements, so that sixteen bytes are always there) and not stored.
template <KvType T, int R, int H>
CUTAWAY_INLINE void add_stored(const Element<T>* v, int64_t stride, const float* const* weights,
                               int64_t begin, int64_t end, float* const* out, int64_t n, int first,
                               const char* next) noexcept {
  float32x4_t acc[R][H][4];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int h = 0; h < H; ++h) {
#pragma GCC unroll 16
      for (int u = 0; u < 4; ++u) {
        const int64_t i = 16 * (first + h) + 4 * u;
        acc[r][h][u] = load_first(out[r] + i, n - i);
      }
    }
  }
  for (int64_t p = begin; p < end; ++p) {
    const Element<T>* at = v + p * stride;
    if constexpr (R <= kFewRows) {
      __builtin_prefetch(next + p * (T == KvType::kQ8 ? kKvBlock : kHalfBlock));
    }
    float weight[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) weight[r] = weights[r][p];
#pragma GCC unroll 16
    for (int h = 0; h < H; ++h) {
      float32x4_t value[4];
      if constexpr (T == KvType::kQ8) {
        load16(at + 16 * (first + h), value);
      } else {
        load16_halves(at, first + h == 1, value);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int u = 0; u < 4; ++u) {
          acc[r][h][u] = vfmaq_n_f32(acc[r][h][u], value[u], weight[r]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int h = 0; h < H; ++h) {
#pragma GCC unroll 16
      for (int u = 0; u < 4; ++u) {
        const int64_t i = 16 * (first + h) + 4 * u;
        store_first(out[r] + i, n - i, acc[r][h][u]);
      }
    }
  }
}

// The same for the whole block. `next`: the next tile's elements, from where this block's turn
// fetches on.
template <KvType T, int R>
void add_block(const Element<T>* v, int64_t stride, const float* const* weights, int64_t begin,
               int64_t end, float* const* out, int64_t n, const char* next) noexcept {
  if (begin >= end) return;
  if (n == kKvBlock && R <= 3) {
    add_stored<T, R, 2>(v, stride, weights, begin, end, out, kKvBlock, 0, next);
  } else {
    add_stored<T, R, 1>(v, stride, weights, begin, end, out, n, 0, next);
    if (n > 16) add_stored<T, R, 1>(v, stride, weights, begin, end, out, n, 1, next);
  }
}

// One array of a value tile's scales as f32, [b][64], from its [64][blocks] halves.
CUTAWAY_INLINE void transpose_scales(const uint16_t* halves, int64_t blocks, int64_t ahead,
                                     float* out) noexcept {
  for (int64_t line = 0; line < 2 * blocks; ++line) fetch(halves + 32 * line, ahead);
  const auto put = [&](int64_t b, int64_t p, uint16x4_t scales) noexcept {
    vst1q_f32(out + b * kTilePositions + p, vcvt_f32_f16(vreinterpret_f16_u16(scales)));
  };
  for (int64_t p = 0; p < kTilePositions; p += 4) {
    const uint16_t* from = halves + p * blocks;
    if (blocks == 1) {
      put(0, p, vld1_u16(from));
    } else if (blocks == 2) {
      const uint16x4x2_t scales = vld2_u16(from);
#pragma GCC unroll 16
      for (int b = 0; b < 2; ++b) put(b, p, scales.val[b]);
    } else if (blocks == 4) {
      const uint16x4x4_t scales = vld4_u16(from);
#pragma GCC unroll 16
      for (int b = 0; b < 4; ++b) put(b, p, scales.val[b]);
    } else {
      for (int64_t b = 0; b < blocks; ++b) {
        const uint16_t scales[4] = {from[b], from[blocks + b], from[2 * blocks + b],
                                    from[3 * blocks + b]};
        put(b, p, vld1_u16(scales));
      }
    }
  }
}

// to[p] = weights[p] · scale[p], in whole vectors around [begin, end).
CUTAWAY_INLINE void scale_weights(const float* weights, const float* scale, int64_t begin,
                                  int64_t end, float* to) noexcept {
  for (int64_t p = begin / 4 * 4; p < end; p += 4) {
    vst1q_f32(to + p, vmulq_f32(vld1q_f32(weights + p), vld1q_f32(scale + p)));
  }
}

// Σ weights[p] · min[p] over [begin, end), in lanes of fixed positions. What lies around may be
// anything, and stays out.
CUTAWAY_INLINE float weighted_min(const float* weights, const float* min, int64_t begin,
                                  int64_t end) noexcept {
  if (begin >= end) return 0;  // weights are scores still
  float32x4_t sum[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
  for (int64_t first = begin / 8 * 8; first < end; first += 8) {
#pragma GCC unroll 16
    for (int h = 0; h < 2; ++h) {
      const int64_t p = first + 4 * h;
      const uint32x4_t bits = vreinterpretq_u32_f32(vld1q_f32(min + p));
      const float32x4_t shown = vreinterpretq_f32_u32(vandq_u32(seen_lanes(p, begin, end), bits));
      sum[h] = vfmaq_f32(sum[h], vld1q_f32(weights + p), shown);
    }
  }
  return sum_lanes(sum[0], sum[1]);
}

}  // namespace cutaway::kernels::neon
