// Eight lanes of numbers, the grids of values that codes stand for, and blocks laid out with a
// sub-block to a lane: the ground of the search for scales. Internal to formats/.
//
// Compiled for more than one instruction set, like all of quantize_lanes_*.h: everything is a
// static inline, since an inline function of a library that the linker took from a file for AVX2
// would crash a processor without it.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace cutaway::formats {
namespace {

#define CUTAWAY_LANES_INLINE static inline __attribute__((always_inline))

constexpr int kLanes = 8;
using F = float __attribute__((vector_size(4 * kLanes)));
using I = int32_t __attribute__((vector_size(4 * kLanes)));

CUTAWAY_LANES_INLINE F splat(float value) { return F{} + value; }
CUTAWAY_LANES_INLINE F smaller(F a, F b) { return a < b ? a : b; }
CUTAWAY_LANES_INLINE F larger(F a, F b) { return a > b ? a : b; }
CUTAWAY_LANES_INLINE F magnitude(F a) { return larger(a, -a); }
CUTAWAY_LANES_INLINE F clamp(F a, float low, float high) {
  return smaller(larger(a, splat(low)), splat(high));
}
// Halves to even, for |a| < 2²²: what is added has no room for a fraction.
CUTAWAY_LANES_INLINE F nearest(F a) {
  const F shift = splat(12582912.0f);
  return (a + shift) - shift;
}
CUTAWAY_LANES_INLINE I integers(F a) { return __builtin_convertvector(a, I); }
CUTAWAY_LANES_INLINE F floats(I a) { return __builtin_convertvector(a, F); }
// 1 / a, and 0 where a is.
CUTAWAY_LANES_INLINE F inverse(F a) {
  const F zero{};
  return a != zero ? splat(1.0f) / (a != zero ? a : splat(1.0f)) : zero;
}
CUTAWAY_LANES_INLINE F as_half(F a) {
  F out{};
  for (int l = 0; l < kLanes; ++l) out[l] = f16_to_f32(f32_to_f16(a[l]));
  return out;
}

// The values that codes stand for.
template <int kLow, int kHigh>
struct Uniform {
  static constexpr float kLowest = kLow, kHighest = kHigh;
  // Of what the search tries, as a share of the last value: an eighth to a quarter of a step.
  static constexpr float kStep = 0.03f;
  CUTAWAY_LANES_INLINE F snap(F a) { return nearest(clamp(a, kLow, kHigh)); }
  CUTAWAY_LANES_INLINE I code(F a) { return integers(snap(a)) - kLow; }
};

// A grid of `kN` ascending values; between two neighbours the nearer one counts.
template <typename Values>
struct Table {
  static constexpr float kLowest = Values::kAt[0], kHighest = Values::kAt[Values::kN - 1];
  static constexpr float kStep = 0.03f;
  CUTAWAY_LANES_INLINE F snap(F a) {
    F out = splat(kLowest);
    for (int i = 1; i < Values::kN; ++i) {
      const F step = splat(Values::kAt[i] - Values::kAt[i - 1]);
      out += a > splat((Values::kAt[i] + Values::kAt[i - 1]) / 2) ? step : F{};
    }
    return out;
  }
  CUTAWAY_LANES_INLINE I code(F a) {
    I out{};
    for (int i = 1; i < Values::kN; ++i) {
      out -= a > splat((Values::kAt[i] + Values::kAt[i - 1]) / 2);  // a true lane is −1
    }
    return out;
  }
};

struct IQ4Points {
  static constexpr int kN = 16;
  static constexpr float kAt[kN] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};
};
using IQ4 = Table<IQ4Points>;

// Sign and magnitude; code: as the file has it (bit 3 is the sign).
struct FP4Points {
  static constexpr int kN = 8;
  static constexpr float kAt[kN] = {0, 1, 2, 3, 4, 6, 8, 12};
};
struct FP4 {
  CUTAWAY_LANES_INLINE F snap(F a) {
    const F size = Table<FP4Points>::snap(magnitude(a));
    return a < F{} ? -size : size;
  }
  CUTAWAY_LANES_INLINE I code(F a) {
    const I size = Table<FP4Points>::code(magnitude(a));
    return size + (a < F{} && size != I{} ? I{} + 8 : I{});
  }
};

// Element j of eight sub-blocks of N, one in each lane, divided by a power of two (`unit`), so that
// neither sums of products overflow nor small blocks vanish.
template <int N>
struct Tile {
  F x[N], w[N];
};

// Largest exponent of |x|, as the power of two above which x / unit stays under 2. 1 for zeros.
CUTAWAY_LANES_INLINE float unit_of(float most) {
  if (!(most > 0)) return 1;
  union {
    float value;
    uint32_t bits;
  } u{most};
  u.bits &= 0x7F800000u;
  if (u.bits == 0) u.bits = 0x00800000u;           // subnormal
  if (u.bits > 0x7E000000u) u.bits = 0x7E000000u;  // its inverse must be one that is normal
  return u.value;
}

// Lane l takes x[l·N … l·N + N), for l < lanes; the others are zero.
template <int N>
CUTAWAY_LANES_INLINE void load_tile(const float* x, const float* w, int lanes, F inverse_unit,
                                    Tile<N>& out) {
  for (int j = 0; j < N; ++j) {
    F xs{}, ws{};
    if (lanes == kLanes) {
      for (int l = 0; l < kLanes; ++l) xs[l] = x[l * N + j], ws[l] = w[l * N + j];
    } else {
      for (int l = 0; l < lanes; ++l) xs[l] = x[l * N + j], ws[l] = w[l * N + j];
    }
    out.x[j] = xs * inverse_unit;
    out.w[j] = ws;
  }
}

template <int N>
CUTAWAY_LANES_INLINE F largest_magnitude(const float* x, int lanes) {
  F most{};
  for (int l = 0; l < lanes; ++l) {
    float m = 0;
    for (int j = 0; j < N; ++j) {
      const float a = x[l * N + j] < 0 ? -x[l * N + j] : x[l * N + j];
      m = a > m ? a : m;
    }
    most[l] = m;
  }
  return most;
}

}  // namespace
}  // namespace cutaway::formats
