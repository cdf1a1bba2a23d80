#include "kernels/math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/exp_constants.h"

namespace cutaway::kernels {
namespace {

constexpr float kInfinityF32 = std::numeric_limits<float>::infinity();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ln 2 in two parts; the high one has 32 bits, so that |n| < 2^21 times it is exact.

// 2^n, for a normal result.
float pow2_f32(int32_t n) noexcept {
  return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23);
}
double pow2_f64(int64_t n) noexcept {
  return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52);
}

// Nearest integer, ties to even, |x| < 2^51. The sum is volatile so that it is rounded to a double
// and never cancelled.
double round_f64(double x) noexcept {
  constexpr double kMagic = 0x1.8p52;
  const volatile double shifted = x + kMagic;
  return shifted - kMagic;
}

// sin and cos on |r| ≤ π/4 by their Taylor series, whose first terms left out are below 5e−17.
double sin_reduced(double r) noexcept {
  const double z = r * r;
  double p = -1.0 / 1307674368000.0;
  p = p * z + 1.0 / 6227020800.0;
  p = p * z - 1.0 / 39916800.0;
  p = p * z + 1.0 / 362880.0;
  p = p * z - 1.0 / 5040.0;
  p = p * z + 1.0 / 120.0;
  p = p * z - 1.0 / 6.0;
  return r + r * z * p;
}

double cos_reduced(double r) noexcept {
  const double z = r * r;
  double p = 1.0 / 20922789888000.0;
  p = p * z - 1.0 / 87178291200.0;
  p = p * z + 1.0 / 479001600.0;
  p = p * z - 1.0 / 3628800.0;
  p = p * z + 1.0 / 40320.0;
  p = p * z - 1.0 / 720.0;
  p = p * z + 1.0 / 24.0;
  return 1.0 + (z * z * p - 0.5 * z);
}

}  // namespace

float exp_f32(float x) noexcept {
  if (x != x) return x;
  if (x > kExpHighest) return kInfinityF32;
  if (x < kExpLowest) return 0.0f;
  const volatile float shifted = x * kLog2E + kRoundMagic;
  const float n = shifted - kRoundMagic;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = kExpP4;
  p = p * r + kExpP3;
  p = p * r + kExpP2;
  p = p * r + kExpP1;
  p = p * r + kExpP0;
  const float y = 1.0f + (r + r * r * p);
  // 2^n in two factors: n = 128 and subnormal results are out of one factor's reach.
  const auto whole = static_cast<int32_t>(n);
  const int32_t half = whole >> 1;
  return y * pow2_f32(half) * pow2_f32(whole - half);
}

float tanh_f32(float x) noexcept {
  const float magnitude = std::fabs(x);
  float y;
  if (magnitude <= kTanhSmall) {
    const float z = magnitude * magnitude;
    float p = kTanhT5;
    p = p * z + kTanhT4;
    p = p * z + kTanhT3;
    p = p * z + kTanhT2;
    p = p * z + kTanhT1;
    p = p * z + kTanhT0;
    y = magnitude + magnitude * z * p;
  } else {
    y = 1.0f - 2.0f / (exp_f32(2.0f * magnitude) + 1.0f);  // NaN stays NaN
  }
  return std::copysign(y, x);
}

double exp_f64(double x) noexcept {
  if (x != x) return x;
  if (x > 710.0) return kInfinity;
  if (x < -746.0) return 0.0;
  const double n = round_f64(x * kLog2EF64);
  const double r = (x - n * kLn2HighF64) - n * kLn2LowF64;
  double y = 0;
  exp_series_f64(r, y);
  const auto whole = static_cast<int64_t>(n);
  const int64_t half = whole >> 1;
  return y * pow2_f64(half) * pow2_f64(whole - half);
}

double log_f64(double x) noexcept {
  if (x != x || x == kInfinity) return x;
  if (x == 0) return -kInfinity;
  if (x < 0) return std::numeric_limits<double>::quiet_NaN();
  int64_t n = 0;
  if (x < std::numeric_limits<double>::min()) {
    x *= 0x1p54;
    n = -54;
  }
  // x = 2^n · m with m in [√½, √2): the exponent of x / √½ is n.
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDu;
  const auto bits = std::bit_cast<uint64_t>(x);
  const auto exponent = static_cast<int64_t>(bits - kSqrtHalf) >> 52;
  n += exponent;
  const auto m = std::bit_cast<double>(bits - (static_cast<uint64_t>(exponent) << 52));
  // log m = 2·atanh(s), s = f / (2 + f); written as f − s·(f − R) so that the leading f is exact
  // (R collects the series beyond 2·s; source: the identity 2·s = f − s·f).
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double p = 2.0 / 23.0;
  p = p * z + 2.0 / 21.0;
  p = p * z + 2.0 / 19.0;
  p = p * z + 2.0 / 17.0;
  p = p * z + 2.0 / 15.0;
  p = p * z + 2.0 / 13.0;
  p = p * z + 2.0 / 11.0;
  p = p * z + 2.0 / 9.0;
  p = p * z + 2.0 / 7.0;
  p = p * z + 2.0 / 5.0;
  p = p * z + 2.0 / 3.0;
  const double log_m = f - s * (f - z * p);
  const auto k = static_cast<double>(n);
  return k * kLn2HighF64 + (log_m + k * kLn2LowF64);
}

void sincos_f64(double x, double& sine, double& cosine) noexcept {
  // x − n·π/2 with π/2 in three parts: the first two have 29 bits, so that n < 2^24 times them is
  // exact.
  constexpr double kPiOver2A = 0x1.921fb54p+0;
  constexpr double kPiOver2B = 0x1.10b4611p-30;
  constexpr double kPiOver2C = 0x1.4c4c6628b80dcp-59;
  const double n = round_f64(x * 0x1.45f306dc9c883p-1);
  const double r = ((x - n * kPiOver2A) - n * kPiOver2B) - n * kPiOver2C;
  const double s = sin_reduced(r);
  const double c = cos_reduced(r);
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      sine = s, cosine = c;
      break;
    case 1:
      sine = c, cosine = -s;
      break;
    case 2:
      sine = -s, cosine = -c;
      break;
    default:
      sine = -c, cosine = s;
      break;
  }
}

}  // namespace cutaway::kernels
