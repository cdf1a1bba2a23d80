// sdot multiplies 16 signed bytes with 16 and adds four at a time into 32 bits.
#include <arm_neon.h>

#include "kernels/probe.h"

namespace cutaway::kernels {
namespace {

constexpr int kChains = 16;  // of 32 registers

// A value that the compiler may not compute in advance, or take out of a loop.
template <typename V>
inline void opaque(V& value) noexcept {
  asm volatile("" : "+w"(value));
}

int64_t int8(int64_t rounds) noexcept {
  int32x4_t sums[kChains];
#pragma GCC unroll 16
  for (int32x4_t& sum : sums) sum = vdupq_n_s32(0);
  int8x16_t x = vdupq_n_s8(3), y = vdupq_n_s8(-2);
  for (int64_t round = 0; round < rounds; ++round) {
    opaque(x);
    opaque(y);
#pragma GCC unroll 16
    for (int32x4_t& sum : sums) {
      sum = vdotq_s32(sum, x, y);
      opaque(sum);
    }
  }
  return rounds * kChains * 16 * 2;
}

int64_t f32(int64_t rounds) noexcept {
  float32x4_t sums[kChains];
#pragma GCC unroll 16
  for (float32x4_t& sum : sums) sum = vdupq_n_f32(0);
  float32x4_t x = vdupq_n_f32(0.5f), y = vdupq_n_f32(0.25f);
  for (int64_t round = 0; round < rounds; ++round) {
    opaque(x);
    opaque(y);
#pragma GCC unroll 16
    for (float32x4_t& sum : sums) {
      sum = vfmaq_f32(sum, x, y);
      opaque(sum);
    }
  }
  return rounds * kChains * 4 * 2;
}

}  // namespace

const ArithmeticProbe kNeonProbe{"neon", "sdot", "fmla", &int8, &f32};

}  // namespace cutaway::kernels
