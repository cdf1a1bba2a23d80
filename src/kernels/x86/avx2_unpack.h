// Half a step of a block of 32 K as unsigned bytes: weights of 8 rows × 8 K elements,
// Block::kOffset more than they are. Internal to the AVX2 kernels.
#pragma once

#include "kernels/blocks.h"
#include "kernels/x86/avx2.h"

namespace cutaway::kernels::avx2 {

// Of the rows 8·h …: low[4·r + i] is row 8·h + r's K element 4·J + i, high[4·r + i] its K element
// 16 + 4·J + i. `packed` are the bytes q[J][32·h …], `fifth` the bytes fifth[32·h …].
CUTAWAY_INLINE __m256i low_nibbles(__m256i packed) noexcept {
  return _mm256_and_si256(packed, _mm256_set1_epi8(15));
}
CUTAWAY_INLINE __m256i high_nibbles(__m256i packed) noexcept {
  return _mm256_and_si256(_mm256_srli_epi16(packed, 4), _mm256_set1_epi8(15));
}

// Bits J (low) and 4 + J (high) of the plane become bit 4.
template <int J>
CUTAWAY_INLINE __m256i with_fifth_low(__m256i nibbles, __m256i fifth) noexcept {
  const __m256i bit = _mm256_slli_epi16(fifth, 4 - J);
  return _mm256_or_si256(nibbles, _mm256_and_si256(bit, _mm256_set1_epi8(16)));
}
template <int J>
CUTAWAY_INLINE __m256i with_fifth_high(__m256i nibbles, __m256i fifth) noexcept {
  const __m256i bit = J == 0 ? fifth : _mm256_srli_epi16(fifth, J);
  return _mm256_or_si256(nibbles, _mm256_and_si256(bit, _mm256_set1_epi8(16)));
}

// 16 values by index, in both halves of a vector.
CUTAWAY_INLINE __m256i table_of(const void* values) noexcept {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(values)));
}

// The low and the high elements of step J and half h.
template <int J, typename Block>
CUTAWAY_INLINE __m256i unpack_low(const Block& block, int h) noexcept {
  if constexpr (std::is_same_v<Block, ByteBlock>) {
    return _mm256_xor_si256(load_bytes(block.q[J] + 32 * h), _mm256_set1_epi8(-128));
  } else {
    const __m256i nibbles = low_nibbles(load_bytes(block.q[J] + 32 * h));
    if constexpr (kHasFifth<Block>) {
      return with_fifth_low<J>(nibbles, load_bytes(block.fifth + 32 * h));
    } else if constexpr (kHasTable<Block>) {
      return _mm256_shuffle_epi8(table_of(kOffsetValues<Block>.values), nibbles);
    } else {
      return nibbles;
    }
  }
}
template <int J, typename Block>
CUTAWAY_INLINE __m256i unpack_high(const Block& block, int h) noexcept {
  if constexpr (std::is_same_v<Block, ByteBlock>) {
    return _mm256_xor_si256(load_bytes(block.q[J + 4] + 32 * h), _mm256_set1_epi8(-128));
  } else {
    const __m256i nibbles = high_nibbles(load_bytes(block.q[J] + 32 * h));
    if constexpr (kHasFifth<Block>) {
      return with_fifth_high<J>(nibbles, load_bytes(block.fifth + 32 * h));
    } else if constexpr (kHasTable<Block>) {
      return _mm256_shuffle_epi8(table_of(kOffsetValues<Block>.values), nibbles);
    } else {
      return nibbles;
    }
  }
}

// The scales of the rows 8·h ….
template <typename Block>
CUTAWAY_INLINE __m256 scales_of(const Block& block, int h) noexcept {
  return load_halves(block.d + 8 * h);
}
CUTAWAY_INLINE __m256 scales_of(const MicroBlock& block, int h) noexcept {
  // 2^(e − 128): from 2 on the exponent is e − 1; 0 and 1 are the subnormals 2^−128 and 2^−127.
  const __m256i e =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(block.e + 8 * h)));
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  const __m256i subnormal =
      _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), _mm256_min_epi32(e, _mm256_set1_epi32(2)));
  return _mm256_castsi256_ps(_mm256_max_epi32(normal, subnormal));
}

}  // namespace cutaway::kernels::avx2
