// vpmaddubsw multiplies 32 unsigned with 32 signed bytes and adds pairs into 16 bits: what the
// 8-bit products are made of.
#include <immintrin.h>

#include "kernels/probe.h"

namespace cutaway::kernels {
namespace {

constexpr int kIntChains = 8, kFloatChains = 10;  // of 16 registers: sums, and factors beside them

// A value that the compiler may not compute in advance, or take out of a loop.
template <typename V>
inline void opaque(V& value) noexcept {
  asm volatile("" : "+x"(value));
}

int64_t int8(int64_t rounds) noexcept {
  __m256i sums[kIntChains], factors[4];
#pragma GCC unroll 16
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) factors[i] = _mm256_set1_epi8(static_cast<char>(i + 1));
  __m256i weights = _mm256_set1_epi8(3);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 4
    for (__m256i& factor : factors) opaque(factor);
#pragma GCC unroll 16
    for (int i = 0; i < kIntChains; ++i) {
      opaque(weights);
      sums[i] = _mm256_add_epi16(sums[i], _mm256_maddubs_epi16(weights, factors[i % 4]));
      opaque(sums[i]);
    }
  }
  return rounds * kIntChains * 32 * 2;
}

int64_t f32(int64_t rounds) noexcept {
  __m256 sums[kFloatChains];
#pragma GCC unroll 16
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  __m256 x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(0.25f);
  for (int64_t round = 0; round < rounds; ++round) {
    opaque(x);
    opaque(y);
#pragma GCC unroll 16
    for (__m256& sum : sums) {
      sum = _mm256_fmadd_ps(x, y, sum);
      opaque(sum);
    }
  }
  return rounds * kFloatChains * 8 * 2;
}

}  // namespace

const ArithmeticProbe kAvx2Probe{"avx2", "vpmaddubsw + vpaddw", "vfmadd231ps", &int8, &f32};

}  // namespace cutaway::kernels
