// A distribution over tokens that is put in order only as far as someone looks: a full sort of the
// vocabulary would cost as much as a decode step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/lanes.h"

namespace cutaway::sampling {

// A token with its weight exp((logit − max) · inverse_temperature); probability = weight / total.
struct WeightedToken {
  int32_t id;
  float logit;
  double weight;
};

// Memory that choices reuse.
struct DistributionBuffers {
  std::vector<float> block_max;
  std::vector<float> thresholds;
  std::vector<WeightedToken> ordered;
  std::vector<uint64_t> keys;
  std::vector<uint64_t> spare;
};

class Distribution {
 public:
  // Over `logits` (kept by the caller, unchanged meanwhile), of which `scan` tells that none is NaN
  // or +inf and one at least is above −inf; buffers.block_max is that scan's. Tokens at −inf are
  // not part of it.
  Distribution(std::span<const float> logits, const LogitScan& scan, double inverse_temperature,
               DistributionBuffers& buffers);

  // Tokens that are left.
  int64_t count();
  // The sum of their weights: over the whole vocabulary as exp_sums adds, after a cut in order.
  double total();
  // −Σ p · log p, in nats.
  double entropy();

  // The first min(n, count) of what is left, by logit (largest first), then id. Valid until the
  // next call.
  std::span<const WeightedToken> first(int64_t n);
  // first(n) of a size that is worth looking at next, after `seen` were not enough.
  static int64_t more(int64_t seen) { return seen < 64 ? 64 : seen * 8; }

  // log p of a token that is left; an accessor, called per token.
  double log_probability(const WeightedToken& token);

  // Keeps the first n (≥ 1), or those of the first count() whose flag is set.
  void keep_first(int64_t n);
  void keep_flagged(const std::vector<bool>& flags);

 private:
  void collect(float threshold);
  void weigh(size_t n);
  void cut_to(size_t n);

  std::span<const float> logits_;
  float max_;
  double inverse_temperature_;
  DistributionBuffers& buffers_;
  bool whole_ = true;  // nothing was cut yet: ordered is a prefix of the vocabulary
  bool collected_all_ = false;
  size_t weighed_ = 0;  // of ordered
  int64_t count_ = -1;  // −1: not known yet
  double total_ = -1;
  double log_total_ = 0;
};

}  // namespace cutaway::sampling
