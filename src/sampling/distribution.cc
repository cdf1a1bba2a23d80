#include "sampling/distribution.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

#include "base/check.h"
#include "trace/trace.h"

namespace cutaway::sampling {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr size_t kRadixFrom = 1024;  // tokens from which on the radix sort is the faster one

// Token as one number, whose ascending order is by logit, largest first, then id. +0 and −0 are
// one.
uint64_t order_key(float logit, size_t id) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);
  const uint32_t descending = bits >> 31 != 0 ? bits : ~(bits | 0x80000000u);
  return uint64_t{descending} << 32 | id;
}

// By the logit's 32 bits only; stable, so that keys which come in id order need no more.
void radix_sort(std::vector<uint64_t>& keys, std::vector<uint64_t>& spare) {
  constexpr int kDigits = 3, kBits = 11;
  constexpr uint64_t kMask = (1u << kBits) - 1;
  std::array<std::array<uint32_t, kMask + 1>, kDigits> start{};
  for (const uint64_t key : keys) {
    for (int digit = 0; digit < kDigits; ++digit) {
      ++start[static_cast<size_t>(digit)][key >> (32 + digit * kBits) & kMask];
    }
  }
  spare.resize(keys.size());
  for (int digit = 0; digit < kDigits; ++digit) {
    auto& at = start[static_cast<size_t>(digit)];
    uint32_t sum = 0;
    for (uint32_t& n : at) sum += std::exchange(n, sum);
    for (const uint64_t key : keys) spare[at[key >> (32 + digit * kBits) & kMask]++] = key;
    keys.swap(spare);
  }
}

}  // namespace

Distribution::Distribution(std::span<const float> logits, const LogitScan& scan,
                           double inverse_temperature, DistributionBuffers& buffers)
    : logits_(logits),
      max_(scan.max),
      inverse_temperature_(inverse_temperature),
      buffers_(buffers) {
  CUTAWAY_SPAN(span, "sampling::Distribution", "n", logits.size(), "max", scan.max,
               "inverse_temperature", inverse_temperature);
  CUTAWAY_CHECK(!scan.damaged && scan.argmax >= 0);
  CUTAWAY_CHECK(buffers.block_max.size() == (logits.size() + kScanBlock - 1) / kScanBlock);
  buffers_.ordered.clear();
}

int64_t Distribution::count() {
  CUTAWAY_SPAN(span, "sampling::Distribution::count");
  if (count_ < 0) {
    count_ = std::count_if(logits_.begin(), logits_.end(), [](float l) { return l > kMinusInf; });
  }
  CUTAWAY_OUT(span, "count", count_);
  return count_;
}

double Distribution::total() {
  CUTAWAY_SPAN(span, "sampling::Distribution::total");
  if (total_ < 0) {
    total_ = exp_sums(logits_, max_, inverse_temperature_).sum;
    log_total_ = kernels::log_f64(total_);
  }
  CUTAWAY_OUT(span, "total", total_);
  return total_;
}

double Distribution::entropy() {
  CUTAWAY_SPAN(span, "sampling::Distribution::entropy", "whole", whole_);
  double weighted = 0;
  if (whole_) {
    const ExpSums sums = exp_sums(logits_, max_, inverse_temperature_);
    total_ = sums.sum;
    log_total_ = kernels::log_f64(total_);
    weighted = sums.weighted;
  } else {
    for (const WeightedToken& token : first(count())) {
      if (token.weight > 0) weighted += token.weight * (log_probability(token) + log_total_);
    }
  }
  const double entropy = log_total_ - weighted / total_;
  CUTAWAY_OUT(span, "nats", entropy);
  return entropy;
}

double Distribution::log_probability(const WeightedToken& token) {
  if (total_ < 0) total();
  return (static_cast<double>(token.logit) - static_cast<double>(max_)) * inverse_temperature_ -
         log_total_;
}

// Puts every token from `threshold` on into `ordered`: a prefix of the order, ties included.
void Distribution::collect(float threshold) {
  CUTAWAY_SPAN(span, "sampling::Distribution::collect", "threshold", threshold);
  std::vector<uint64_t>& keys = buffers_.keys;
  keys.clear();
  for (size_t block = 0; block < buffers_.block_max.size(); ++block) {
    const float block_max = buffers_.block_max[block];
    if (block_max < threshold || block_max == kMinusInf) continue;
    const size_t end = std::min(logits_.size(), (block + 1) * kScanBlock);
    for (size_t i = block * kScanBlock; i < end; ++i) {
      const float logit = logits_[i];
      if (logit >= threshold && logit > kMinusInf) keys.push_back(order_key(logit, i));
    }
  }
  if (threshold == kMinusInf) {
    collected_all_ = true;
    count_ = static_cast<int64_t>(keys.size());
  }
  if (keys.size() >= kRadixFrom) {
    radix_sort(keys, buffers_.spare);
  } else {
    std::sort(keys.begin(), keys.end());
  }
  buffers_.ordered.clear();
  for (const uint64_t key : keys) {
    const auto id = static_cast<uint32_t>(key);
    buffers_.ordered.push_back({static_cast<int32_t>(id), logits_[id], 0});
  }
  weighed_ = 0;
  CUTAWAY_OUT(span, "ordered", keys.size());
}

void Distribution::weigh(size_t n) {
  for (; weighed_ < n; ++weighed_) {
    WeightedToken& token = buffers_.ordered[weighed_];
    token.weight = exp_weight(token.logit, max_, inverse_temperature_);
  }
}

std::span<const WeightedToken> Distribution::first(int64_t n) {
  CUTAWAY_SPAN(span, "sampling::Distribution::first", "n", n);
  const auto wanted = static_cast<size_t>(std::max<int64_t>(n, 0));
  std::vector<WeightedToken>& ordered = buffers_.ordered;
  if (ordered.size() < wanted && whole_ && !collected_all_) {
    // The wanted-th largest of the blocks' maxima: that many tokens at least are no smaller. Where
    // there are not that many blocks, everything is put in order.
    float threshold = kMinusInf;
    if (wanted <= buffers_.block_max.size()) {
      buffers_.thresholds = buffers_.block_max;
      const auto nth = buffers_.thresholds.begin() + static_cast<ptrdiff_t>(wanted - 1);
      std::nth_element(buffers_.thresholds.begin(), nth, buffers_.thresholds.end(),
                       std::greater<>());
      threshold = *nth;
    }
    collect(threshold);
  }
  const size_t kept = std::min(wanted, ordered.size());
  weigh(kept);
  CUTAWAY_OUT(span, "n", kept);
  return std::span<const WeightedToken>(ordered).first(kept);
}

void Distribution::cut_to(size_t n) {
  CUTAWAY_SPAN(span, "sampling::Distribution::cut_to", "n", n);
  CUTAWAY_CHECK(n >= 1 && n <= buffers_.ordered.size());
  weigh(n);
  buffers_.ordered.resize(n);
  weighed_ = n;
  whole_ = false;
  count_ = static_cast<int64_t>(n);
  total_ = 0;
  for (const WeightedToken& token : buffers_.ordered) total_ += token.weight;
  // A prefix holds the largest weight; what typical-p keeps holds a part of the mass.
  CUTAWAY_CHECK(total_ > 0);
  log_total_ = kernels::log_f64(total_);
  CUTAWAY_OUT(span, "total", total_);
}

void Distribution::keep_first(int64_t n) {
  CUTAWAY_SPAN(span, "sampling::Distribution::keep_first", "n", n);
  const size_t kept = first(n).size();
  cut_to(kept);
  CUTAWAY_OUT(span, "kept", kept, "total", total_);
}

void Distribution::keep_flagged(const std::vector<bool>& flags) {
  CUTAWAY_SPAN(span, "sampling::Distribution::keep_flagged", "n", flags.size());
  first(count());
  std::vector<WeightedToken>& ordered = buffers_.ordered;
  CUTAWAY_CHECK(flags.size() == ordered.size());
  size_t kept = 0;
  for (size_t i = 0; i < ordered.size(); ++i) {
    if (flags[i]) ordered[kept++] = ordered[i];
  }
  cut_to(kept);
  CUTAWAY_OUT(span, "kept", kept, "total", total_);
}

}  // namespace cutaway::sampling
