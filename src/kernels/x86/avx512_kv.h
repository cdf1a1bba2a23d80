// Elements of a KV tile as f32: what avx512_attention.cc multiplies with. Internal to x86/.
//
// The order of a row's operations does not depend on the rows that share what is loaded, and is
// that of avx2_kv.h: a quantised block is summed over its stored integers, then its scale comes in.
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

CUTAWAY_INLINE const uint16_t* tile_scales(KvType type, const void* tile, int64_t d) noexcept {
  return reinterpret_cast<const uint16_t*>(static_cast<const uint8_t*>(tile) +
                                           kv_element_bytes(type, d));
}

// Asks for the `bytes` of the next tile that lie where `now` lies in this one. Few rows find a tile
// in memory (tiles of one head are a page apart, where no hardware prefetcher follows). Nothing is
// asked for when `ahead`, the bytes from a tile to the next, is 0.
CUTAWAY_INLINE void fetch(const void* now, int64_t ahead, int64_t bytes) noexcept {
  if (ahead == 0) return;
  const char* next = static_cast<const char*>(now);
  next = reinterpret_cast<const char*>(reinterpret_cast<intptr_t>(next) + ahead);
  for (int64_t at = 0; at < bytes; at += 64) _mm_prefetch(next + at, _MM_HINT_T0);
}

// kF16: elements [first, first + n) of the keys of the 16-position blocks [0, block_end) to
// out[block][i][p % 16], a block n·16 floats after the one before.
CUTAWAY_INLINE void restore_keys(const void* k, int64_t d, int64_t first, int64_t n,
                                 int64_t block_end, float* out) noexcept {
  for (int64_t block = 0; block < block_end; ++block, out += n * kKeyLanes) {
    const uint16_t* from = static_cast<const uint16_t*>(k) + (block * d + first) * kKeyLanes;
    for (int64_t i = 0; i < n; ++i) {
      _mm512_storeu_ps(out + i * kKeyLanes, load16(from + i * kKeyLanes));
    }
  }
}

// kF16: elements [first, first + n) of the values of positions [begin, end) to out[p · stride + i];
// stride is n up to whole vectors, and what lies past n is not meant to be read.
CUTAWAY_INLINE void restore_values(const void* v, int64_t d, int64_t first, int64_t n,
                                   int64_t begin, int64_t end, int64_t stride,
                                   float* out) noexcept {
  for (int64_t p = begin; p < end; ++p) {
    float* to = out + p * stride;
    const uint16_t* from = static_cast<const uint16_t*>(v) + p * d + first;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) _mm512_storeu_ps(to + i, load16(from + i));
    if (i < n) _mm512_storeu_ps(to + i, load16(from + i, first_lanes(n - i)));
  }
}

// kQ8 and kQ4: the stored integers of quantised block s, of n elements, of the keys of the
// 16-position blocks [0, block_end) to out[block][i][p % 16], 32 · 16 floats apart.
template <KvType T>
void unpack_keys(const void* k, int64_t d, int64_t s, int64_t n, int64_t block_end, int64_t ahead,
                 float* out) noexcept {
  const auto* bytes = static_cast<const uint8_t*>(k);
  for (int64_t block = 0; block < block_end; ++block, out += kKvBlock * kKeyLanes) {
    if constexpr (T == KvType::kQ8) {
      const uint8_t* from = bytes + (block * d + s * kKvBlock) * kKeyLanes;
      fetch(from, ahead, n * kKeyLanes);
      for (int64_t i = 0; i < n; ++i) {
        _mm512_storeu_ps(out + i * kKeyLanes,
                         load16(reinterpret_cast<const int8_t*>(from) + i * kKeyLanes));
      }
    } else {
      const uint8_t* from = bytes + (block * kv_blocks(d) + s) * kHalfBlock * kKeyLanes;
      fetch(from, ahead, kHalfBlock * kKeyLanes);
      for (int64_t i = 0; i < kHalfBlock; ++i) {
        const __m512i pairs = load_nibbles(from + i * kKeyLanes);
        _mm512_storeu_ps(out + i * kKeyLanes, low_halves(pairs));
        _mm512_storeu_ps(out + (kHalfBlock + i) * kKeyLanes, high_halves(pairs));
      }
    }
  }
}

// The same of the values of positions [begin, end) to out[p][32].
template <KvType T>
void unpack_values(const void* v, int64_t d, int64_t s, int64_t n, int64_t begin, int64_t end,
                   int64_t ahead, float* out) noexcept {
  const auto* bytes = static_cast<const uint8_t*>(v);
  for (int64_t p = begin; p < end; ++p) {
    float* to = out + p * kKvBlock;
    if constexpr (T == KvType::kQ8) {
      const uint8_t* from = bytes + p * d + s * kKvBlock;
      fetch(from, ahead, n);
      // A tile's scales follow its elements, so that sixteen bytes are always there.
      _mm512_storeu_ps(to, load16(reinterpret_cast<const int8_t*>(from)));
      if (n > 16) _mm512_storeu_ps(to + 16, load16(reinterpret_cast<const int8_t*>(from) + 16));
    } else {
      const uint8_t* from = bytes + (p * kv_blocks(d) + s) * kHalfBlock;
      fetch(from, ahead, kHalfBlock);
      const __m512i pairs = load_nibbles(from);
      _mm512_storeu_ps(to, low_halves(pairs));
      _mm512_storeu_ps(to + 16, high_halves(pairs));
    }
  }
}

// One block's scales (or mins) of a tile's 64 values, from halves[p][blocks].
CUTAWAY_INLINE void block_scales(const uint16_t* halves, int64_t blocks, int64_t s, int64_t ahead,
                                 __m512 (&out)[4]) noexcept {
  if (s == 0) fetch(halves, ahead, 2 * kTilePositions * blocks);
  for (int b = 0; b < 4; ++b) {
    alignas(32) uint16_t column[kKeyLanes];
    for (int64_t p = 0; p < kKeyLanes; ++p) column[p] = halves[(b * kKeyLanes + p) * blocks + s];
    out[b] = load_halves(column);
  }
}

// Σ q over the n ≤ 32 elements of a query's block, which is what a kQ4 key's min is multiplied
// with: in the lanes of avx2_kv.h.
CUTAWAY_INLINE float block_sum(const float* q, int64_t n) noexcept {
  const auto part = [&](int64_t i) noexcept {
    return _mm256_maskz_loadu_ps(static_cast<__mmask8>(first_lanes(n - i)), q + i);
  };
  __m256 sum = part(0);
  for (int64_t i = 8; i < n; i += 8) sum = _mm256_add_ps(sum, part(i));
  return sum_lanes(sum);
}

}  // namespace cutaway::kernels::avx512
