// Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and its scalings.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/pass.h"

namespace cutaway::ops {

enum class RopeScaling : uint8_t { kNone, kLinear, kYarn };

struct RopeConfig {
  int64_t n_rot = 0;  // rotated elements of a head, even; pairs (i, i + n_rot/2)
  double theta = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;            // kLinear, kYarn
  double original_context = 0;  // kYarn: the context before scaling
  double beta_fast = 32, beta_slow = 1;
  double attention_factor = 0;  // kYarn: multiplies cos and sin; 0: 0.1 · ln(factor) + 1
  std::vector<float> divisors;  // Llama 3: divides pair i's frequency; empty: none
};

// RopeConfig::divisors as Llama 3.1 and 3.2 have them: frequencies that turn at least
// `high_frequency_factor` times in the original context stay (1), those that turn at most
// `low_frequency_factor` times are divided by `factor`, between them a linear ramp of 1/divisor
// (source: the `llama3` rope type of transformers).
std::vector<float> llama3_divisors(int64_t n_rot, double theta, double factor,
                                   double low_frequency_factor, double high_frequency_factor,
                                   double original_context);

// The frequency of each pair and the magnitude of cos and sin, computed once per model.
class Rope {
 public:
  Rope() = default;
  explicit Rope(const RopeConfig& config);

  // cos and sin of every row's position in the batch: {rows, n_rot/2} each, in scratch memory.
  // Angles are computed in double, with our own sine and cosine.
  struct Angles {
    Rows cos, sin;
  };
  Angles angles(Pass& pass) const;

  int64_t n_rot() const { return n_rot_; }
  const std::vector<double>& frequencies() const { return frequencies_; }
  double magnitude() const { return magnitude_; }

 private:
  int64_t n_rot_ = 0;
  std::vector<double> frequencies_;
  double magnitude_ = 1;
};

// Rotates every head of x {rows, n_heads · d_head} in place; elements from n_rot on stay as they
// are.
void rotate(Pass& pass, const Rope& rope, const Rope::Angles& angles, int64_t n_heads,
            const Rows& x);

}  // namespace cutaway::ops
