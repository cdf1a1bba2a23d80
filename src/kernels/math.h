// exp, log, sin, cos of our own: the same bits on every machine, which libm does not promise.
#pragma once

namespace cutaway::kernels {

// Within 2 ulp on the normal range; exp(−inf) = 0, overflow gives +inf, NaN stays NaN. The ref
// table's exp; SIMD tables use the same polynomial.
float exp_f32(float x) noexcept;
float tanh_f32(float x) noexcept;

// Within 1e−15 relative (sin, cos: absolute, for |x| ≤ 1e7).
double exp_f64(double x) noexcept;
double log_f64(double x) noexcept;  // x > 0
void sincos_f64(double x, double& sine, double& cosine) noexcept;

}  // namespace cutaway::kernels
