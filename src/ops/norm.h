// RMS normalisation (Zhang & Sennrich 2019, arXiv:1910.07467), and LayerNorm.
#pragma once

#include <optional>
#include <span>

#include "ops/linear.h"

namespace cutaway::ops {

// The taps of a norm: which of ln1, ln2, ln_final it is.
struct NormSites {
  std::optional<trace::Site> input;  // the residual stream that is normalised, where it has a name
  trace::Site scale;                 // the denominator, {rows, 1}
  trace::Site normalized;            // x / scale, before the weight
};
inline constexpr NormSites kNorm1{trace::Site::kResidPre, trace::Site::kLn1Scale,
                                  trace::Site::kLn1Normalized};
inline constexpr NormSites kNorm2{{}, trace::Site::kLn2Scale, trace::Site::kLn2Normalized};
// The first norm of a block that norms what attention gives, not what it takes.
inline constexpr NormSites kPostNorm1{{}, trace::Site::kLn1Scale, trace::Site::kLn1Normalized};
inline constexpr NormSites kNormFinal{
    {}, trace::Site::kLnFinalScale, trace::Site::kLnFinalNormalized};

// x / sqrt(mean(x²) + eps) · weight, row by row; in the same pass over a row quantised to 8 bits
// when one of `readers`, the products that read it, takes that.
Input rms_norm(Pass& pass, const NormSites& sites, int layer, const Rows& x, const Vector& weight,
               float eps, std::span<const Linear* const> readers = {});

// The same with LayerNorm. One function for all kernel tables, sums in double.
Input layer_norm(Pass& pass, const NormSites& sites, int layer, const Rows& x,
                 const LayerNorm& norm, std::span<const Linear* const> readers = {});

// rms_norm() in place and without taps, where x {rows, d} holds d / weight.n parts that are normed
// each by itself: heads, or the whole row.
void rms_norm_parts(Pass& pass, const Rows& x, const Vector& weight, float eps);

}  // namespace cutaway::ops
