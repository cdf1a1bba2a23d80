#include "kernels/arm/neon.h"

namespace cutaway::kernels::neon {

// The steps and the bits of ref::quantize_q8 (its comments say why a block that is not finite gets
// the scale NaN, and why tiny blocks are zeros).
CUTAWAY_INLINE void quantize_row(const float* x, int64_t blocks, int8_t* q, float* scale,
                                 HalfSums* sum, float* total) noexcept {
  const int32x4_t magnitude = vdupq_n_s32(0x7FFFFFFF);
  for (int64_t b = 0; b < blocks; ++b, x += kBlockK, q += kBlockK) {
    float32x4_t v[8];
    int32x4_t most = vdupq_n_s32(0);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      v[i] = vld1q_f32(x + 4 * i);
      // The bits of |x| order as integers do, with infinity and NaN above all numbers.
      most = vmaxq_s32(most, vandq_s32(vreinterpretq_s32_f32(v[i]), magnitude));
    }
    const int32_t bits = vmaxvq_s32(most);
    float amax;
    std::memcpy(&amax, &bits, sizeof(amax));
    if (bits >= 0x7F800000 || amax < 0x1p-119f) {
      const int32_t scale_bits = bits >= 0x7F800000 ? 0x7FC00000 : 0;
      std::memcpy(scale + b, &scale_bits, sizeof(scale_bits));
      std::memset(q, 0, kBlockK);
      sum[b] = {};
      total[b] = scale[b] * 0.0f;
      continue;
    }
    scale[b] = amax / 127.0f;
    const float32x4_t inverse = vdupq_n_f32(127.0f / amax);
    int32x4_t whole[8];
    int32x4_t sums[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      whole[i] = vcvtnq_s32_f32(vmulq_f32(v[i], inverse));
      sums[i / 4] = vaddq_s32(sums[i / 4], whole[i]);
    }
    const int32_t low = vaddvq_s32(sums[0]), high = vaddvq_s32(sums[1]);
    sum[b] = {static_cast<int16_t>(low), static_cast<int16_t>(high)};
    total[b] = scale[b] * static_cast<float>(low + high);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const int16x8_t low = vcombine_s16(vmovn_s32(whole[4 * i]), vmovn_s32(whole[4 * i + 1]));
      const int16x8_t high = vcombine_s16(vmovn_s32(whole[4 * i + 2]), vmovn_s32(whole[4 * i + 3]));
      vst1q_s8(q + 16 * i, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    }
  }
}

void quantize_q8(const float* x, int64_t x_stride, int64_t n, int64_t cols, int64_t first_block,
                 const Q8Output& out) noexcept {
  for (int64_t c = 0; c < n; ++c) {
    const int64_t first = c * (out.cols / kBlockK) + first_block;
    quantize_row(x + c * x_stride, cols / kBlockK, out.q + first * kBlockK, out.scale + first,
                 out.sum + first, out.total + first);
  }
}

float rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) noexcept {
  float64x2_t squares[4] = {vdupq_n_f64(0), vdupq_n_f64(0), vdupq_n_f64(0), vdupq_n_f64(0)};
  for (int64_t i = 0; i < n; i += 8) {
    const float32x4_t a = load_first(x + i, n - i);
    const float32x4_t b = load_first(x + i + 4, n - i - 4);
    const float64x2_t wide[4] = {vcvt_f64_f32(vget_low_f32(a)), vcvt_high_f64_f32(a),
                                 vcvt_f64_f32(vget_low_f32(b)), vcvt_high_f64_f32(b)};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) squares[j] = vfmaq_f64(squares[j], wide[j], wide[j]);
  }
  const float64x2_t t =
      vaddq_f64(vaddq_f64(squares[0], squares[2]), vaddq_f64(squares[1], squares[3]));
  const double mean = (vgetq_lane_f64(t, 0) + vgetq_lane_f64(t, 1)) / static_cast<double>(n);
  const float64x1_t root = vsqrt_f64(vdup_n_f64(mean + static_cast<double>(eps)));
  const auto scale = static_cast<float>(vget_lane_f64(root, 0));
  const float32x4_t divisor = vdupq_n_f32(scale);
  for (int64_t i = 0; i < n; i += 4) {
    const float32x4_t v = vdivq_f32(load_first(x + i, n - i), divisor);
    store_first(out + i, n - i, vmulq_f32(v, load_first(weight + i, n - i)));
  }
  return scale;
}

void rope(float* x, const float* cos, const float* sin, int64_t n_rot, bool interleaved) noexcept {
  const int64_t half = n_rot / 2;
  int64_t i = 0;
  for (; i + 4 <= half; i += 4) {
    float* from = x + (interleaved ? 2 * i : i);
    const float32x4x2_t pairs =
        interleaved ? vld2q_f32(from) : float32x4x2_t{{vld1q_f32(from), vld1q_f32(from + half)}};
    const float32x4_t a = pairs.val[0];
    const float32x4_t b = pairs.val[1];
    const float32x4_t c = vld1q_f32(cos + i);
    const float32x4_t s = vld1q_f32(sin + i);
    const float32x4x2_t rotated = {
        {vsubq_f32(vmulq_f32(a, c), vmulq_f32(b, s)), vaddq_f32(vmulq_f32(b, c), vmulq_f32(a, s))}};
    if (interleaved) {
      vst2q_f32(from, rotated);
    } else {
      vst1q_f32(from, rotated.val[0]);
      vst1q_f32(from + half, rotated.val[1]);
    }
  }
  for (; i < half; ++i) {
    float& a = x[interleaved ? 2 * i : i];
    float& b = x[interleaved ? 2 * i + 1 : i + half];
    const float rotated_a = a * cos[i] - b * sin[i];
    const float rotated_b = b * cos[i] + a * sin[i];
    a = rotated_a;
    b = rotated_b;
  }
}

void add(const float* a, const float* b, int64_t n, float* out) noexcept {
  for (int64_t i = 0; i < n; i += 4) {
    store_first(out + i, n - i, vaddq_f32(load_first(a + i, n - i), load_first(b + i, n - i)));
  }
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) noexcept {
  const float32x4_t one = vdupq_n_f32(1.0f);
  for (int64_t i = 0; i < n; i += 4) {
    const float32x4_t g = load_first(gate + i, n - i);
    const float32x4_t silu = vdivq_f32(g, vaddq_f32(one, exp4(vnegq_f32(g))));
    store_first(out + i, n - i, vmulq_f32(silu, load_first(up + i, n - i)));
  }
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* out) noexcept {
  const float32x4_t one = vdupq_n_f32(1.0f), half = vdupq_n_f32(0.5f);
  for (int64_t i = 0; i < n; i += 4) {
    const float32x4_t x = load_first(gate + i, n - i);
    const float32x4_t cubic =
        vaddq_f32(vdupq_n_f32(kGelu1), vmulq_f32(vdupq_n_f32(kGelu3), vmulq_f32(x, x)));
    const float32x4_t gelu =
        vmulq_f32(vmulq_f32(half, x), vaddq_f32(one, tanh4(vmulq_f32(x, cubic))));
    store_first(out + i, n - i, up == nullptr ? gelu : vmulq_f32(gelu, load_first(up + i, n - i)));
  }
}

void soft_cap(const float* x, float cap, int64_t n, float* out) noexcept {
  const float32x4_t caps = vdupq_n_f32(cap);
  for (int64_t i = 0; i < n; i += 4) {
    const float32x4_t y = tanh4(vdivq_f32(load_first(x + i, n - i), caps));
    store_first(out + i, n - i, vmulq_f32(caps, y));
  }
}

}  // namespace cutaway::kernels::neon
