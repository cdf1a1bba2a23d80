// The constants of exp_f32 and tanh_f32, shared by the scalar and the SIMD forms, which take the
// same steps and so give the same bits. The polynomials interpolate at Chebyshev nodes. Internal.
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

}  // namespace cutaway::kernels
