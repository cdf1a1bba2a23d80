// The constants of exp_f32, tanh_f32 and exp_f64, shared by the scalar and the SIMD forms, which
// take the same steps and so give the same bits. The polynomials interpolate at Chebyshev nodes.
// Internal.
#pragma once

namespace cutaway::kernels {

// exp(x) = 2^n · exp(r), n = round(x / ln 2), r = x − n · ln 2 in two parts: the high one has 12
// bits, so that n times it is exact.
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2High = 0x1.62ep-1f;
inline constexpr float kLn2Low = 0x1.0bfbe8p-15f;
// exp(r) ≈ 1 + (r + r²·P(r)) on |r| ≤ ln 2 / 2, within 0.09 of 2^−23.
inline constexpr float kExpP0 = 0x1.000000p-1f;
inline constexpr float kExpP1 = 0x1.5554dcp-3f;
inline constexpr float kExpP2 = 0x1.555518p-5f;
inline constexpr float kExpP3 = 0x1.120be2p-7f;
inline constexpr float kExpP4 = 0x1.6d117cp-10f;
// Outside these, exp is +inf or below half the smallest subnormal.
inline constexpr float kExpHighest = 89.0f;
inline constexpr float kExpLowest = -104.0f;
// 1.5·2^23: adding it rounds |x| < 2^22 to an integer, ties to even, held in the low bits.
inline constexpr float kRoundMagic = 0x1.8p23f;

// tanh(x) ≈ x + x·z·T(z), z = x², on |x| ≤ 0.625, within 0.04 of 2^−23.
inline constexpr float kTanhSmall = 0.625f;
inline constexpr float kTanhT0 = -0x1.555556p-2f;
inline constexpr float kTanhT1 = 0x1.1110eap-3f;
inline constexpr float kTanhT2 = -0x1.ba08c4p-5f;
inline constexpr float kTanhT3 = 0x1.64a976p-6f;
inline constexpr float kTanhT4 = -0x1.116a16p-7f;
inline constexpr float kTanhT5 = 0x1.2c83c0p-9f;

// gelu(x) = x/2 · (1 + tanh(x · (kGelu1 + kGelu3 · x²))): √(2/π), and that times 0.044715.
inline constexpr float kGelu1 = 0x1.988454p-1f;
inline constexpr float kGelu3 = 0x1.2444f2p-5f;

// exp_f64, likewise in two parts of ln 2, and shared with the vector form that sampling sums with.
inline constexpr double kLog2EF64 = 0x1.71547652b82fep+0;
inline constexpr double kLn2HighF64 = 0x1.62e42feep-1;
inline constexpr double kLn2LowF64 = 0x1.a39ef35793c76p-33;
// exp(r) on |r| ≤ ln 2 / 2 by its Taylor series: the first term left out, r^14 / 14!, is below
// 5e−18. V is double, or a vector of doubles.
template <typename V>
[[gnu::always_inline]] inline void exp_series_f64(const V& r, V& out) noexcept {
  V p = V{} + 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  out = 1.0 + (r + r * r * p);
}

}  // namespace cutaway::kernels
