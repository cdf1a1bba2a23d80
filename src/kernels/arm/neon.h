// The NEON kernels (contracts in table.h) and what their files share. Internal to kernels/.
//
// These files are compiled for ARMv8.2-A with the dot product, the rest of the program is not. So
// everything shared is a static inline of this header: an inline function of the standard library
// that the linker took from here could crash an older processor.
//
// Each takes the steps of its AVX2 sister, in the same order, so that the bits are the same too.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/exp_constants.h"
#include "kernels/table.h"

namespace cutaway::kernels::neon {

template <Layout layout>
void matmul_q8(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
               const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept;
template <Layout layout>
void matmul_f32(const PackedMatrix& w, int64_t group_begin, int64_t group_end, const float* x,
                int64_t x_stride, int64_t n, float* y, int64_t y_stride) noexcept;

// The layouts of super-blocks.
template <Layout layout>
void matmul_super_q8(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
                     const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept;

void quantize_q8(const float* x, int64_t x_stride, int64_t n, int64_t cols, int64_t first_block,
                 const Q8Output& out) noexcept;
float rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) noexcept;
void rope(float* x, const float* cos, const float* sin, int64_t n_rot, bool interleaved) noexcept;
void add(const float* a, const float* b, int64_t n, float* out) noexcept;
void silu_mul(const float* gate, const float* up, int64_t n, float* out) noexcept;
void gelu_mul(const float* gate, const float* up, int64_t n, float* out) noexcept;
void soft_cap(const float* x, float cap, int64_t n, float* out) noexcept;

void store_key(KvType type, const float* key, int64_t d, int64_t p, void* k) noexcept;
void store_value(KvType type, const float* value, int64_t d, int64_t p, void* v) noexcept;
void attention_tile(const AttentionTileArgs& args) noexcept;
void attention_merge(float tile_max, float tile_sum, const float* tile_out, int64_t d_v, float* max,
                     float* sum, float* out) noexcept;
void attention_finish(float sum, int64_t d_v, float* out) noexcept;

#define CUTAWAY_INLINE static inline __attribute__((always_inline))

// Four f16 from memory as f32.
CUTAWAY_INLINE float32x4_t load_halves(const uint16_t* p) noexcept {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

// The first `count` of 4 floats (all of them from 4 on, none from 0 down); others are neither read
// (0 stands for them) nor written.
CUTAWAY_INLINE float32x4_t load_first(const float* p, int64_t count) noexcept {
  if (count >= 4) return vld1q_f32(p);
  float32x4_t v = vdupq_n_f32(0);
  if (count > 0) v = vld1q_lane_f32(p, v, 0);
  if (count > 1) v = vld1q_lane_f32(p + 1, v, 1);
  if (count > 2) v = vld1q_lane_f32(p + 2, v, 2);
  return v;
}
CUTAWAY_INLINE void store_first(float* p, int64_t count, float32x4_t v) noexcept {
  if (count >= 4) {
    vst1q_f32(p, v);
    return;
  }
  if (count > 0) vst1q_lane_f32(p, v, 0);
  if (count > 1) vst1q_lane_f32(p + 1, v, 1);
  if (count > 2) vst1q_lane_f32(p + 2, v, 2);
}

// exp of math.cc on four lanes, step by step, so that the bits are the same.
CUTAWAY_INLINE float32x4_t exp4(float32x4_t x) noexcept {
  const float32x4_t bounded =
      vmaxq_f32(vdupq_n_f32(kExpLowest), vminq_f32(vdupq_n_f32(kExpHighest), x));
  const float32x4_t magic = vdupq_n_f32(kRoundMagic);
  const float32x4_t n = vsubq_f32(vaddq_f32(vmulq_f32(bounded, vdupq_n_f32(kLog2E)), magic), magic);
  const float32x4_t r = vsubq_f32(vsubq_f32(bounded, vmulq_f32(n, vdupq_n_f32(kLn2High))),
                                  vmulq_f32(n, vdupq_n_f32(kLn2Low)));
  float32x4_t p = vdupq_n_f32(kExpP4);
  p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(kExpP3));
  p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(kExpP2));
  p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(kExpP1));
  p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(kExpP0));
  const float32x4_t y = vaddq_f32(vdupq_n_f32(1.0f), vaddq_f32(r, vmulq_f32(vmulq_f32(r, r), p)));
  const int32x4_t whole = vcvtnq_s32_f32(n);
  const int32x4_t half = vshrq_n_s32(whole, 1);
  const int32x4_t bias = vdupq_n_s32(127);
  const float32x4_t scale_1 = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
  const float32x4_t scale_2 =
      vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vsubq_s32(whole, half), bias), 23));
  const float32x4_t result = vmulq_f32(vmulq_f32(y, scale_1), scale_2);
  // The bounds themselves are in range: 89 overflows to +inf, −104 is below half of the smallest
  // subnormal and rounds to 0. Only a NaN differs from itself.
  return vbslq_f32(vceqq_f32(x, x), result, x);
}

// tanh of math.cc on four lanes, likewise.
CUTAWAY_INLINE float32x4_t tanh4(float32x4_t x) noexcept {
  const float32x4_t magnitude = vabsq_f32(x);
  const float32x4_t z = vmulq_f32(magnitude, magnitude);
  float32x4_t p = vdupq_n_f32(kTanhT5);
  p = vaddq_f32(vmulq_f32(p, z), vdupq_n_f32(kTanhT4));
  p = vaddq_f32(vmulq_f32(p, z), vdupq_n_f32(kTanhT3));
  p = vaddq_f32(vmulq_f32(p, z), vdupq_n_f32(kTanhT2));
  p = vaddq_f32(vmulq_f32(p, z), vdupq_n_f32(kTanhT1));
  p = vaddq_f32(vmulq_f32(p, z), vdupq_n_f32(kTanhT0));
  const float32x4_t small = vaddq_f32(magnitude, vmulq_f32(vmulq_f32(magnitude, z), p));
  const float32x4_t one = vdupq_n_f32(1.0f);
  const float32x4_t two = vdupq_n_f32(2.0f);
  const float32x4_t large =
      vsubq_f32(one, vdivq_f32(two, vaddq_f32(exp4(vmulq_f32(two, magnitude)), one)));
  const float32x4_t y = vbslq_f32(vcleq_f32(magnitude, vdupq_n_f32(kTanhSmall)), small, large);
  return vbslq_f32(vdupq_n_u32(0x80000000), x, y);  // x's sign
}

}  // namespace cutaway::kernels::neon
