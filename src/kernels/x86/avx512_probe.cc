// vpdpbusd multiplies 64 unsigned with 64 signed bytes and adds four at a time into 32 bits.
#include <immintrin.h>

#include "kernels/probe.h"

namespace cutaway::kernels {
namespace {

constexpr int kChains = 14;  // of 32 registers

// A value that the compiler may not compute in advance, or take out of a loop.
template <typename V>
inline void opaque(V& value) noexcept {
  asm volatile("" : "+v"(value));
}

int64_t int8(int64_t rounds) noexcept {
  __m512i sums[kChains];
#pragma GCC unroll 16
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  __m512i x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(-2);
  for (int64_t round = 0; round < rounds; ++round) {
    opaque(x);
    opaque(y);
#pragma GCC unroll 16
    for (__m512i& sum : sums) {
      sum = _mm512_dpbusd_epi32(sum, x, y);
      opaque(sum);
    }
  }
  return rounds * kChains * 64 * 2;
}

int64_t f32(int64_t rounds) noexcept {
  __m512 sums[kChains];
#pragma GCC unroll 16
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  __m512 x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(0.25f);
  for (int64_t round = 0; round < rounds; ++round) {
    opaque(x);
    opaque(y);
#pragma GCC unroll 16
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(x, y, sum);
      opaque(sum);
    }
  }
  return rounds * kChains * 16 * 2;
}

}  // namespace

const ArithmeticProbe kAvx512Probe{"avx512", "vpdpbusd", "vfmadd231ps (512 bits)", &int8, &f32};

}  // namespace cutaway::kernels
