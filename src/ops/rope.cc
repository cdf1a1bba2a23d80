#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "kernels/math.h"
#include "trace/trace.h"

namespace cutaway::ops {
namespace {

// YaRN (Peng et al. 2023, arXiv:2309.00071, as transformers computes it): high frequencies stay,
// low ones are divided by the factor, between them a linear ramp over the pairs.
void apply_yarn(const RopeConfig& config, std::vector<double>& frequencies) {
  const auto half = static_cast<double>(config.n_rot) / 2;
  const auto pair_turning = [&](double turns) {
    return static_cast<double>(config.n_rot) *
           kernels::log_f64(config.original_context / (turns * 2 * std::numbers::pi)) /
           (2 * kernels::log_f64(config.theta));
  };
  const double low = std::max(std::floor(pair_turning(config.beta_fast)), 0.0);
  double high =
      std::min(std::ceil(pair_turning(config.beta_slow)), static_cast<double>(config.n_rot) - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < static_cast<size_t>(half); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / config.factor * ramp + frequencies[i] * (1 - ramp);
  }
}

double pair_frequency(int64_t pair, int64_t n_rot, double log_theta) {
  return kernels::exp_f64(-2 * static_cast<double>(pair) / static_cast<double>(n_rot) * log_theta);
}

}  // namespace

std::vector<float> llama3_divisors(int64_t n_rot, double theta, double factor,
                                   double low_frequency_factor, double high_frequency_factor,
                                   double original_context) {
  CUTAWAY_SPAN(span, "ops::llama3_divisors", "n_rot", n_rot, "theta", theta, "factor", factor,
               "original_context", original_context);
  CUTAWAY_CHECK(n_rot > 0 && n_rot % 2 == 0 && high_frequency_factor > low_frequency_factor);
  std::vector<float> out;
  for (int64_t pair = 0; pair < n_rot / 2; ++pair) {
    const double frequency = pair_frequency(pair, n_rot, kernels::log_f64(theta));
    const double turns = original_context * frequency / (2 * std::numbers::pi);
    const double kept = std::clamp(
        (turns - low_frequency_factor) / (high_frequency_factor - low_frequency_factor), 0.0, 1.0);
    out.push_back(static_cast<float>(1 / ((1 - kept) / factor + kept)));
  }
  CUTAWAY_OUT(span, "first", out.front(), "last", out.back());
  return out;
}

double long_rope_factor(double scale, double original_context) {
  CUTAWAY_SPAN(span, "ops::long_rope_factor", "scale", scale, "original_context", original_context);
  const bool scaled = scale > 1 && original_context > 1;
  const double factor =
      scaled ? std::sqrt(1 + kernels::log_f64(scale) / kernels::log_f64(original_context)) : 1;
  CUTAWAY_OUT(span, "factor", factor);
  return factor;
}

Rope::Rope(const RopeConfig& config) : n_rot_(config.n_rot) {
  CUTAWAY_SPAN(span, "ops::Rope", "n_rot", n_rot_, "theta", config.theta, "factor", config.factor,
               "divisors", config.divisors.size());
  CUTAWAY_CHECK(n_rot_ > 0 && n_rot_ % 2 == 0);
  const auto pairs = static_cast<size_t>(n_rot_ / 2);
  CUTAWAY_CHECK(config.divisors.empty() || config.divisors.size() == pairs);
  CUTAWAY_CHECK(config.long_divisors.empty() || config.long_divisors.size() == pairs);
  frequencies_.resize(pairs);
  const double log_theta = kernels::log_f64(config.theta);
  for (size_t i = 0; i < pairs; ++i) {
    frequencies_[i] = pair_frequency(static_cast<int64_t>(i), n_rot_, log_theta);
  }
  if (config.scaling == RopeScaling::kLinear) {
    for (double& f : frequencies_) f /= config.factor;
  } else if (config.scaling == RopeScaling::kYarn) {
    apply_yarn(config, frequencies_);
    magnitude_ = 0.1 * kernels::log_f64(config.factor) + 1;
  }
  if (config.attention_factor > 0) magnitude_ = config.attention_factor;
  if (!config.long_divisors.empty()) {
    original_context_ = config.original_context;
    long_frequencies_ = frequencies_;
    for (size_t i = 0; i < pairs; ++i) long_frequencies_[i] /= config.long_divisors[i];
  }
  for (size_t i = 0; i < config.divisors.size(); ++i) frequencies_[i] /= config.divisors[i];
  CUTAWAY_OUT(span, "fastest", frequencies_.front(), "slowest", frequencies_.back(), "magnitude",
              magnitude_);
}

Rope::Angles Rope::angles(Pass& pass) const {
  CUTAWAY_SPAN(span, "ops::Rope::angles", "rows", pass.rows(), "n_rot", n_rot_);
  const int64_t pairs = n_rot_ / 2;
  Angles out{pass.make(pass.rows(), pairs), pass.make(pass.rows(), pairs)};
  for (const Slice& slice : pass.batch.slices) {
    const bool is_long =
        !long_frequencies_.empty() && static_cast<double>(slice.context) > original_context_;
    const std::vector<double>& frequencies = is_long ? long_frequencies_ : frequencies_;
    for_rows(pass, slice.n, [&](int64_t i) noexcept {
      const auto position = static_cast<double>(slice.first_position + i);
      float* cos = out.cos.row(slice.first_row + i);
      float* sin = out.sin.row(slice.first_row + i);
      for (int64_t j = 0; j < pairs; ++j) {
        double s = 0, c = 0;
        kernels::sincos_f64(position * frequencies[static_cast<size_t>(j)], s, c);
        cos[j] = static_cast<float>(c * magnitude_);
        sin[j] = static_cast<float>(s * magnitude_);
      }
    });
  }
  CUTAWAY_OUT(span, "cos", out.cos.view(), "sin", out.sin.view());
  return out;
}

void rotate(Pass& pass, const Rope& rope, const Rope::Angles& angles, int64_t n_heads,
            const Rows& x) {
  CUTAWAY_SPAN(span, "ops::rotate", "x", x.view(), "heads", n_heads);
  if (rope.n_rot() == 0) return;
  const int64_t d_head = x.d / n_heads;
  for_rows(pass, x.n, [&](int64_t i) noexcept {
    for (int64_t h = 0; h < n_heads; ++h) {
      pass.table.rope(x.row(i) + h * d_head, angles.cos.row(i), angles.sin.row(i), rope.n_rot(),
                      false);
    }
  });
  CUTAWAY_OUT(span, "x", x.view());
}

}  // namespace cutaway::ops
