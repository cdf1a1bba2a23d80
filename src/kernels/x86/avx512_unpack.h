// One step of a block of 32 K as unsigned bytes: weights of 16 rows × 8 K elements, Block::kOffset
// more than they are. Internal to the AVX-512 kernels.
#pragma once

#include "kernels/x86/avx512.h"

namespace cutaway::kernels::avx512 {

// low[4·r + i] is row r's K element 4·J + i, high[4·r + i] its K element 16 + 4·J + i.
struct Step {
  __m512i low, high;
};

CUTAWAY_INLINE Step split_nibbles(__m512i q) noexcept {
  const __m512i mask = _mm512_set1_epi8(15);
  return {_mm512_and_si512(q, mask), _mm512_and_si512(_mm512_srli_epi16(q, 4), mask)};
}

template <int J>
CUTAWAY_INLINE Step unpack(const NibbleMinBlock& block) noexcept {
  return split_nibbles(load_bytes(block.q[J]));
}
template <int J>
CUTAWAY_INLINE Step unpack(const NibbleBlock& block) noexcept {
  return split_nibbles(load_bytes(block.q[J]));
}

// Bits J (low) and 4 + J (high) of the plane become bit 4.
template <int J>
CUTAWAY_INLINE Step add_fifth_bits(Step step, __m512i plane) noexcept {
  constexpr int kAOrBAndC = 0xF8;
  const __m512i sixteen = _mm512_set1_epi8(16);
  const __m512i high = J == 0 ? plane : _mm512_srli_epi16(plane, J);
  return {_mm512_ternarylogic_epi32(step.low, _mm512_slli_epi16(plane, 4 - J), sixteen, kAOrBAndC),
          _mm512_ternarylogic_epi32(step.high, high, sixteen, kAOrBAndC)};
}
template <int J>
CUTAWAY_INLINE Step unpack(const FiveMinBlock& block) noexcept {
  return add_fifth_bits<J>(split_nibbles(load_bytes(block.q[J])), load_bytes(block.fifth));
}
template <int J>
CUTAWAY_INLINE Step unpack(const FiveBlock& block) noexcept {
  return add_fifth_bits<J>(split_nibbles(load_bytes(block.q[J])), load_bytes(block.fifth));
}

template <typename Block>
CUTAWAY_INLINE Step look_up(__m512i q) noexcept {
  const __m512i values = _mm512_broadcast_i32x4(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(kOffsetValues<Block>.values)));
  const Step index = split_nibbles(q);
  return {_mm512_shuffle_epi8(values, index.low), _mm512_shuffle_epi8(values, index.high)};
}
template <int J>
CUTAWAY_INLINE Step unpack(const NonlinearBlock& block) noexcept {
  return look_up<NonlinearBlock>(load_bytes(block.q[J]));
}
template <int J>
CUTAWAY_INLINE Step unpack(const MicroBlock& block) noexcept {
  return look_up<MicroBlock>(load_bytes(block.q[J]));
}

// Only the sign bit differs between a byte and one that is 128 more.
template <int J>
CUTAWAY_INLINE Step unpack(const ByteBlock& block) noexcept {
  const __m512i sign = _mm512_set1_epi8(-128);
  return {_mm512_xor_si512(load_bytes(block.q[J]), sign),
          _mm512_xor_si512(load_bytes(block.q[J + 4]), sign)};
}

// The 16 rows' scales.
template <typename Block>
CUTAWAY_INLINE __m512 scales_of(const Block& block) noexcept {
  return load_halves(block.d);
}
CUTAWAY_INLINE __m512 scales_of(const MicroBlock& block) noexcept {
  // 2^(e − 128): from 2 on the exponent is e − 1; 0 and 1 are the subnormals 2^−128 and 2^−127.
  const __m512i e =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block.e)));
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  const __m512i subnormal =
      _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), _mm512_min_epi32(e, _mm512_set1_epi32(2)));
  return _mm512_castsi512_ps(_mm512_max_epi32(normal, subnormal));
}

}  // namespace cutaway::kernels::avx512
