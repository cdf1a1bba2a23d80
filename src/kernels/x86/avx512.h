// The AVX-512 kernels (contracts in table.h) and what their files share. Internal to kernels/.
//
// These files are compiled for AVX-512 F, BW, VL, DQ and VNNI (and what AVX2's are), the rest of the
// program is not: as in avx2.h, everything shared is a static inline of this header.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/blocks.h"
#include "kernels/exp_constants.h"
#include "kernels/table.h"

namespace cutaway::kernels::avx512 {

// The bits of avx2::matmul_q8 and avx2::matmul_f32: the same steps in the same order.
template <Layout layout>
void matmul_q8(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
               const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept;

#define CUTAWAY_INLINE static inline __attribute__((always_inline))

template <Layout layout>
using BlockOf =
    std::conditional_t<layout == Layout::kNibbleMin, NibbleMinBlock,
                       std::conditional_t<layout == Layout::kNibble, NibbleBlock, ByteBlock>>;

CUTAWAY_INLINE __m512i load_bytes(const void* p) noexcept { return _mm512_loadu_si512(p); }

// Sixteen f16 from memory as f32.
CUTAWAY_INLINE __m512 load_halves(const uint16_t* p) noexcept {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

CUTAWAY_INLINE __m512i broadcast_4_bytes(const void* p) noexcept {
  int32_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return _mm512_set1_epi32(bits);
}

// Mask of the first `count` of 16 lanes (all of them from 16 on, none from 0 down).
CUTAWAY_INLINE __mmask16 first_lanes(int64_t count) noexcept {
  return count >= 16 ? 0xFFFF : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1);
}

}  // namespace cutaway::kernels::avx512
