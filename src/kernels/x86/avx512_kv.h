// Elements of a KV tile as f32: what avx512_attention.cc multiplies with. Internal to x86/.
//
// Quantised elements are restored as load_key and load_value of kv_layout.h restore them, whatever
// the number of rows, so that a row's bits do not depend on its company.
#pragma once

#include "kernels/x86/avx512.h"

namespace cutaway::kernels::avx512 {

// Elements of a head that are worked on at once: a piece of a tile as f32 is 32 KiB.
constexpr int64_t kPiece = 128;  // a multiple of kKvBlock
constexpr int64_t kHalfBlock = kKvBlock / 2;

// Sixteen consecutive elements, or the first of them, as f32.
CUTAWAY_INLINE __m512 load16(const float* p) noexcept { return _mm512_loadu_ps(p); }
CUTAWAY_INLINE __m512 load16(const uint16_t* p) noexcept { return load_halves(p); }
CUTAWAY_INLINE __m512 load16(const float* p, __mmask16 lanes) noexcept {
  return _mm512_maskz_loadu_ps(lanes, p);
}
CUTAWAY_INLINE __m512 load16(const uint16_t* p, __mmask16 lanes) noexcept {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, p));
}
CUTAWAY_INLINE __m512 load16(const int8_t* p) noexcept {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
CUTAWAY_INLINE __m512i load_nibbles(const uint8_t* p) noexcept {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
CUTAWAY_INLINE __m512 low_halves(__m512i bytes) noexcept {
  return _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(15)));
}
CUTAWAY_INLINE __m512 high_halves(__m512i bytes) noexcept {
  return _mm512_cvtepi32_ps(_mm512_srli_epi32(bytes, 4));
}
CUTAWAY_INLINE __m512 broadcast_half(const uint16_t* p) noexcept {
  return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<int16_t>(*p)));
}

CUTAWAY_INLINE const uint16_t* tile_scales(KvType type, const void* tile, int64_t d) noexcept {
  return reinterpret_cast<const uint16_t*>(static_cast<const uint8_t*>(tile) +
                                           kv_element_bytes(type, d));
}

// Asks for `bytes` of the next tile, which few rows find in memory (tiles of one head are a page
// apart, where no hardware prefetcher follows), or for nothing.
CUTAWAY_INLINE const char* fetch(const char* next, int64_t bytes) noexcept {
  if (next == nullptr) return next;
  for (int64_t at = 0; at < bytes; at += 64) _mm_prefetch(next + at, _MM_HINT_T0);
  return next + bytes;
}

// Elements [first, first + n) of the keys of positions [16·block_begin, 16·block_end) to
// out[block][i][p % 16], a block n·16 floats after the one before. `first` is a multiple of kPiece.
template <KvType T>
void restore_keys(const void* k, int64_t d, int64_t first, int64_t n, int64_t block_begin,
                  int64_t block_end, const char* next, float* out) noexcept {
  static_assert(T != KvType::kF32);
  const int64_t blocks = kv_blocks(d);
  for (int64_t block = block_begin; block < block_end; ++block) {
    float* to = out + block * n * kKeyLanes;
    if constexpr (T == KvType::kF16) {
      const uint16_t* from = static_cast<const uint16_t*>(k) + (block * d + first) * kKeyLanes;
      for (int64_t i = 0; i < n; ++i) {
        _mm512_storeu_ps(to + i * kKeyLanes, load16(from + i * kKeyLanes));
      }
      continue;
    }
    const uint16_t* scale = tile_scales(T, k, d) + (block * blocks + first / kKvBlock) * kKeyLanes;
    for (int64_t i = 0; i < n; i += kKvBlock, scale += kKeyLanes) {
      const int64_t in_block = n - i < kKvBlock ? n - i : kKvBlock;
      const __m512 d16 = load_halves(scale);
      float* at = to + i * kKeyLanes;
      if constexpr (T == KvType::kQ8) {
        next = fetch(next, in_block * kKeyLanes);
        const int8_t* from = static_cast<const int8_t*>(k) + (block * d + first + i) * kKeyLanes;
        for (int64_t j = 0; j < in_block; ++j) {
          _mm512_storeu_ps(at + j * kKeyLanes, _mm512_mul_ps(d16, load16(from + j * kKeyLanes)));
        }
      } else {
        next = fetch(next, kHalfBlock * kKeyLanes);
        const __m512 m16 = load_halves(scale + kTilePositions * blocks);
        const uint8_t* from = static_cast<const uint8_t*>(k) +
                              (block * blocks + (first + i) / kKvBlock) * kHalfBlock * kKeyLanes;
        for (int64_t j = 0; j < kHalfBlock && j < in_block; ++j) {
          const __m512i bytes = load_nibbles(from + j * kKeyLanes);
          _mm512_storeu_ps(at + j * kKeyLanes, _mm512_fmadd_ps(d16, low_halves(bytes), m16));
          if (j + kHalfBlock >= in_block) continue;
          _mm512_storeu_ps(at + (j + kHalfBlock) * kKeyLanes,
                           _mm512_fmadd_ps(d16, high_halves(bytes), m16));
        }
      }
    }
  }
}

// Elements [first, first + n) of the values of positions [begin, end) to out[p · stride + i];
// stride is n up to whole blocks, and what lies past n is not meant to be read.
template <KvType T>
void restore_values(const void* v, int64_t d, int64_t first, int64_t n, int64_t begin, int64_t end,
                    const char* next, int64_t stride, float* out) noexcept {
  static_assert(T != KvType::kF32);
  const int64_t blocks = kv_blocks(d);
  for (int64_t p = begin; p < end; ++p) {
    float* to = out + p * stride;
    if constexpr (T == KvType::kF16) {
      const uint16_t* from = static_cast<const uint16_t*>(v) + p * d + first;
      int64_t i = 0;
      for (; i + 16 <= n; i += 16) _mm512_storeu_ps(to + i, load16(from + i));
      if (i < n) _mm512_storeu_ps(to + i, load16(from + i, first_lanes(n - i)));
      continue;
    }
    const uint16_t* scale = tile_scales(T, v, d) + p * blocks + first / kKvBlock;
    next = fetch(next, T == KvType::kQ8 ? n : n / 2);
    for (int64_t i = 0; i < n; i += kKvBlock, ++scale) {
      const __m512 d16 = broadcast_half(scale);
      if constexpr (T == KvType::kQ8) {
        // A tile's scales follow its elements, so that sixteen bytes are always there.
        const int8_t* from = static_cast<const int8_t*>(v) + p * d + first + i;
        _mm512_storeu_ps(to + i, _mm512_mul_ps(d16, load16(from)));
        if (i + 16 < n) _mm512_storeu_ps(to + i + 16, _mm512_mul_ps(d16, load16(from + 16)));
      } else {
        const __m512 m16 = broadcast_half(scale + kTilePositions * blocks);
        const __m512i bytes = load_nibbles(static_cast<const uint8_t*>(v) +
                                           (p * blocks + (first + i) / kKvBlock) * kHalfBlock);
        _mm512_storeu_ps(to + i, _mm512_fmadd_ps(d16, low_halves(bytes), m16));
        _mm512_storeu_ps(to + i + 16, _mm512_fmadd_ps(d16, high_halves(bytes), m16));
      }
    }
  }
}

}  // namespace cutaway::kernels::avx512
