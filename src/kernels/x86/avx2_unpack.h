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

// A block as the products of many columns want it: unpacked once for all of them, scales as f32.
template <typename Block>
struct Unpacked {
  static constexpr int kOffset = Block::kOffset;
  float d[kGroupRows];
  float m[kGroupRows];  // where there are minima
  // q[j] at K = 4·j, as in ByteBlock; what NonlinearBlock stands for is signed, others kOffset
  // more.
  std::conditional_t<std::is_same_v<Block, NonlinearBlock>, int8_t, uint8_t> q[8][4 * kGroupRows];
};

template <int J, typename Block>
CUTAWAY_INLINE __m256i unpack_low(const Unpacked<Block>& block, int h) noexcept {
  return load_bytes(block.q[J] + 32 * h);
}
template <int J, typename Block>
CUTAWAY_INLINE __m256i unpack_high(const Unpacked<Block>& block, int h) noexcept {
  return load_bytes(block.q[J + 4] + 32 * h);
}
template <typename Block>
CUTAWAY_INLINE __m256 scales_of(const Unpacked<Block>& block, int h) noexcept {
  return _mm256_loadu_ps(block.d + 8 * h);
}
template <typename Block>
CUTAWAY_INLINE __m256 mins_of(const Block& block, int h) noexcept {
  return load_halves(block.m + 8 * h);
}
template <typename Block>
CUTAWAY_INLINE __m256 mins_of(const Unpacked<Block>& block, int h) noexcept {
  return _mm256_loadu_ps(block.m + 8 * h);
}

template <int J, typename Block>
CUTAWAY_INLINE void unpack_step(const Block& from, int h, Unpacked<Block>& to) noexcept {
  __m256i low = unpack_low<J>(from, h), high = unpack_high<J>(from, h);
  if constexpr (std::is_same_v<Block, NonlinearBlock>) {
    low = _mm256_xor_si256(low, _mm256_set1_epi8(-128));  // 128 less
    high = _mm256_xor_si256(high, _mm256_set1_epi8(-128));
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.q[J] + 32 * h), low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.q[J + 4] + 32 * h), high);
}
template <typename Block>
CUTAWAY_INLINE void unpack_block(const Block& from, Unpacked<Block>& to) noexcept {
  for (int h = 0; h < 2; ++h) {
    _mm256_storeu_ps(to.d + 8 * h, scales_of(from, h));
    if constexpr (kHasMin<Block>) _mm256_storeu_ps(to.m + 8 * h, mins_of(from, h));
    unpack_step<0>(from, h, to);
    unpack_step<1>(from, h, to);
    unpack_step<2>(from, h, to);
    unpack_step<3>(from, h, to);
  }
}

}  // namespace cutaway::kernels::avx2
