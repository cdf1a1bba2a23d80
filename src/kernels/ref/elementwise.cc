#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/exp_constants.h"
#include "kernels/math.h"
#include "kernels/ref/ref.h"

namespace cutaway::kernels::ref {
namespace {

// Nearest integer, ties to even, for |x| < 2^22: adding and subtracting 1.5·2^23 rounds.
float round_even(float x) noexcept {
  constexpr float kMagic = 0x1.8p23f;
  const volatile float shifted = x + kMagic;  // volatile: no compiler may cancel the two steps
  return shifted - kMagic;
}

// A block that holds an infinity or a NaN gets the scale NaN, so that it shows in the output
// instead of vanishing.
void quantize_block(const float* x, int8_t* q, float& scale, HalfSums& sum) noexcept {
  float amax = 0;
  bool finite = true;
  for (int64_t i = 0; i < kBlockK; ++i) {
    amax = std::max(amax, std::fabs(x[i]));
    finite &= std::fabs(x[i]) <= std::numeric_limits<float>::max();
  }
  scale = finite ? amax / 127.0f : std::numeric_limits<float>::quiet_NaN();
  // Below this 127 / amax overflows; such a block is zeros next to any other activation.
  const bool zeros = !finite || amax < 0x1p-119f;
  if (finite && zeros) scale = 0;
  const float inverse = zeros ? 0.0f : 127.0f / amax;
  int32_t half[2] = {0, 0};
  for (int64_t i = 0; i < kBlockK; ++i) {
    q[i] = zeros ? int8_t{0} : static_cast<int8_t>(round_even(x[i] * inverse));
    half[i / (kBlockK / 2)] += q[i];
  }
  sum = {static_cast<int16_t>(half[0]), static_cast<int16_t>(half[1])};
}

}  // namespace

void quantize_q8(const float* x, int64_t x_stride, int64_t n, int64_t cols, int64_t first_block,
                 const Q8Output& out) noexcept {
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t b = 0; b < cols / kBlockK; ++b) {
      const int64_t to = c * (out.cols / kBlockK) + first_block + b;
      quantize_block(x + c * x_stride + b * kBlockK, out.q + to * kBlockK, out.scale[to],
                     out.sum[to]);
      out.total[to] = out.scale[to] * static_cast<float>(out.sum[to].low + out.sum[to].high);
    }
  }
}

float rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) noexcept {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
  const auto scale =
      static_cast<float>(std::sqrt(squares / static_cast<double>(n) + static_cast<double>(eps)));
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] / scale * weight[i];
  return scale;
}

void rope(float* x, const float* cos, const float* sin, int64_t n_rot, bool interleaved) noexcept {
  const int64_t half = n_rot / 2;
  for (int64_t i = 0; i < half; ++i) {
    float& a = x[interleaved ? 2 * i : i];
    float& b = x[interleaved ? 2 * i + 1 : i + half];
    const float rotated_a = a * cos[i] - b * sin[i];
    const float rotated_b = b * cos[i] + a * sin[i];
    a = rotated_a;
    b = rotated_b;
  }
}

void add(const float* a, const float* b, int64_t n, float* out) noexcept {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) noexcept {
  for (int64_t i = 0; i < n; ++i) out[i] = gate[i] / (1.0f + exp_f32(-gate[i])) * up[i];
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* out) noexcept {
  for (int64_t i = 0; i < n; ++i) {
    const float x = gate[i];
    const float gelu = 0.5f * x * (1.0f + tanh_f32(x * (kGelu1 + kGelu3 * (x * x))));
    out[i] = up == nullptr ? gelu : gelu * up[i];
  }
}

void soft_cap(const float* x, float cap, int64_t n, float* out) noexcept {
  for (int64_t i = 0; i < n; ++i) out[i] = cap * tanh_f32(x[i] / cap);
}

}  // namespace cutaway::kernels::ref
