// Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and its scalings.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/pass.h"

namespace cutaway::ops {

enum class RopeScaling : uint8_t { kNone, kLinear, kYarn, kLongRope };

struct RopeConfig {
  int64_t n_rot = 0;  // rotated elements of a head, even; pairs (i, i + n_rot/2)
  double theta = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;            // kLinear, kYarn
  double original_context = 0;  // kYarn, kLongRope: the context before scaling
  double beta_fast = 32, beta_slow = 1;
  // Multiplies cos and sin. 0: kYarn has 0.1 · ln(factor) + 1, all others 1.
  double attention_factor = 0;
  std::vector<float> divisors;  // divides pair i's frequency; empty: none
  // kLongRope: the divisors of sequences whose context is above original_context. One set serves
  // all positions of a sequence, so that it does not matter when a key was computed.
  std::vector<float> long_divisors;
};

// RopeConfig::divisors as Llama 3.1 and 3.2 have them: frequencies that turn at least
// `high_frequency_factor` times in the original context stay (1), those that turn at most
// `low_frequency_factor` times are divided by `factor`, between them a linear ramp of 1/divisor
// (source: the `llama3` rope type of transformers).
std::vector<float> llama3_divisors(int64_t n_rot, double theta, double factor,
                                   double low_frequency_factor, double high_frequency_factor,
                                   double original_context);

// RopeConfig::attention_factor of LongRoPE where a file has none: √(1 + ln(scale) /
// ln(original_context)), 1 for a scale of at most 1 (source: the `longrope` type of transformers).
double long_rope_factor(double scale, double original_context);

// The frequency of each pair and the magnitude of cos and sin, computed once per model.
class Rope {
 public:
  Rope() = default;
  explicit Rope(const RopeConfig& config);

  // A default-constructed Rope has no pairs: nothing is rotated.
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
  std::vector<double> long_frequencies_;  // empty: all contexts have the same
  double original_context_ = 0;
  double magnitude_ = 1;
};

// Rotates every head of x {rows, n_heads · d_head} in place; elements from n_rot on stay as they
// are.
void rotate(Pass& pass, const Rope& rope, const Rope::Angles& angles, int64_t n_heads,
            const Rows& x);

}  // namespace cutaway::ops
