// Passes over a whole vocabulary of logits: the only loops of this folder whose length is the
// vocabulary's. The same bits on every machine: wider registers change the speed alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/math.h"

namespace cutaway::sampling {

inline constexpr size_t kScanBlock = 64;

struct LogitScan {
  float max = 0;
  int32_t argmax = -1;   // the lowest id among equals; −1 when no logit is above −inf
  bool damaged = false;  // a NaN or +inf is among them
};

// One pass. With `block_max`, also the largest of every kScanBlock consecutive logits, by which
// Distribution finds its candidates.
LogitScan scan_logits(std::span<const float> logits, std::vector<float>* block_max = nullptr);

struct ExpSums {
  double sum = 0;       // Σ exp(x), x = (logit − max) · inverse_temperature
  double weighted = 0;  // Σ exp(x) · x, for the entropy: log(sum) − weighted / sum
};

// Summed in double, in id order, over eight lanes (lane = id mod 8), which are then added pairwise:
// ((0+1)+(2+3))+((4+5)+(6+7)). Precondition: no NaN, max is the largest, and finite.
ExpSums exp_sums(std::span<const float> logits, float max, double inverse_temperature);

// One term of the sum, with the same bits.
inline double exp_weight(float logit, float max, double inverse_temperature) noexcept {
  return kernels::exp_f64((static_cast<double>(logit) - static_cast<double>(max)) *
                          inverse_temperature);
}

}  // namespace cutaway::sampling
