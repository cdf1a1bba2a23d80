// What plain C++ does on this target, with the vectors that the compiler takes by itself.
#include "kernels/probe.h"

namespace cutaway::kernels {
namespace {

// Enough independent sums to keep the units of a wide core busy, few enough to stay in registers
// or in the first-level cache.
constexpr int64_t kLanes = 32;
constexpr int64_t kSteps = 16;  // of one round, with a factor each

// The compiler may not know what the memory at p holds.
template <typename T>
inline void opaque(T* p) noexcept {
  asm volatile("" : "+r"(p) : : "memory");
}

template <typename Factor, typename Sum>
int64_t multiply_add(int64_t rounds) noexcept {
  Factor x[kLanes] = {};
  Factor y[kSteps] = {};
  Sum sums[kLanes] = {};
  for (int64_t i = 0; i < kLanes; ++i) x[i] = static_cast<Factor>(i + 1);
  for (int64_t i = 0; i < kSteps; ++i) y[i] = static_cast<Factor>(i % 2 == 0 ? 1 : -1);
  for (int64_t round = 0; round < rounds; ++round) {
    opaque(x);
    opaque(y);
    // NOLINTNEXTLINE(modernize-loop-convert): compilers vectorise this form, and not the other.
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto factor = static_cast<Sum>(y[step]);
      // Unsigned: a sum may wrap.
      for (int64_t i = 0; i < kLanes; ++i) sums[i] += static_cast<Sum>(x[i]) * factor;
    }
    opaque(sums);
  }
  return rounds * kSteps * kLanes * 2;
}

int64_t int8(int64_t rounds) noexcept { return multiply_add<int8_t, uint32_t>(rounds); }
int64_t f32(int64_t rounds) noexcept { return multiply_add<float, float>(rounds); }

}  // namespace

const ArithmeticProbe kRefProbe{"ref", "plain C++", "plain C++", &int8, &f32};

}  // namespace cutaway::kernels
