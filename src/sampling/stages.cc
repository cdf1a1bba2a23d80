#include "sampling/stages.h"

#include <algorithm>
#include <cmath>

#include "trace/trace.h"

namespace cutaway::sampling {
namespace {

constexpr int64_t kRemovedKept = 50;

bool within(std::span<float> logits, int32_t id) {
  return id >= 0 && static_cast<size_t>(id) < logits.size();
}

// A cut to the first `kept`, and its record.
void cut(Distribution& distribution, int64_t kept, StageRecord* record) {
  if (record == nullptr) return distribution.keep_first(kept);
  const double total = distribution.total();
  record->before_count = distribution.count();
  const auto looked_at = distribution.first(kept + kRemovedKept);
  for (const WeightedToken& token :
       looked_at.subspan(std::min(looked_at.size(), static_cast<size_t>(kept)))) {
    record->removed.push_back({token.id, token.weight / total});
  }
  const bool removes = kept < record->before_count;
  distribution.keep_first(kept);
  record->after_count = distribution.count();
  record->after_mass = removes ? std::min(distribution.total() / total, 1.0) : 1.0;
}

}  // namespace

void add_bias(std::span<float> logits, const std::map<int32_t, double>& bias) {
  CUTAWAY_SPAN(span, "sampling::add_bias", "n", logits.size(), "tokens", bias.size());
  for (const auto& [id, value] : bias) {
    if (within(logits, id)) logits[static_cast<size_t>(id)] += static_cast<float>(value);
  }
}

void penalize_repetition(std::span<float> logits, const std::map<int32_t, int32_t>& prompt,
                         const std::map<int32_t, int32_t>& output, float penalty) {
  CUTAWAY_SPAN(span, "sampling::penalize_repetition", "prompt_tokens", prompt.size(),
               "output_tokens", output.size(), "penalty", penalty);
  const auto penalize = [&](int32_t id) {
    if (!within(logits, id)) return;
    float& logit = logits[static_cast<size_t>(id)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  };
  for (const auto& entry : prompt) penalize(entry.first);
  for (const auto& entry : output) {
    if (!prompt.contains(entry.first)) penalize(entry.first);
  }
}

void penalize_presence_frequency(std::span<float> logits, const std::map<int32_t, int32_t>& output,
                                 float presence, float frequency) {
  CUTAWAY_SPAN(span, "sampling::penalize_presence_frequency", "output_tokens", output.size(),
               "presence", presence, "frequency", frequency);
  for (const auto& [id, count] : output) {
    if (!within(logits, id)) continue;
    logits[static_cast<size_t>(id)] -= static_cast<float>(count) * frequency + presence;
  }
}

void keep_top_k(Distribution& distribution, int64_t k, StageRecord* record) {
  CUTAWAY_SPAN(span, "sampling::keep_top_k", "k", k);
  cut(distribution, k, record);
  CUTAWAY_OUT(span, "count", distribution.count());
}

void keep_typical(Distribution& distribution, double mass, StageRecord* record) {
  CUTAWAY_SPAN(span, "sampling::keep_typical", "mass", mass);
  struct Typical {
    double deviation;
    uint32_t index;  // in the order by logit, then id
    bool operator<(const Typical& other) const {
      return deviation != other.deviation ? deviation < other.deviation : index < other.index;
    }
  };
  const int64_t before = distribution.count();
  const double entropy = distribution.entropy();
  const double total = distribution.total();
  const auto tokens = distribution.first(before);
  std::vector<Typical> typical(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const double surprise = -distribution.log_probability(tokens[i]);
    typical[i] = {std::abs(surprise - entropy), static_cast<uint32_t>(i)};
  }
  std::vector<bool> flags(tokens.size());
  double kept_mass = 0;
  size_t sorted = 0;
  for (size_t i = 0; i < typical.size(); ++i) {
    if (i == sorted) {  // a further part of the order is needed
      sorted = std::min(typical.size(),
                        static_cast<size_t>(Distribution::more(static_cast<int64_t>(sorted))));
      const auto begin = typical.begin() + static_cast<ptrdiff_t>(i);
      const auto end = typical.begin() + static_cast<ptrdiff_t>(sorted);
      if (end != typical.end()) std::nth_element(begin, end, typical.end());
      std::sort(begin, end);
    }
    flags[typical[i].index] = true;
    kept_mass += tokens[typical[i].index].weight;
    if (kept_mass >= mass * total) break;
  }
  if (record != nullptr) {
    record->before_count = before;
    for (size_t i = 0; i < tokens.size() && record->removed.size() < kRemovedKept; ++i) {
      if (!flags[i]) record->removed.push_back({tokens[i].id, tokens[i].weight / total});
    }
  }
  distribution.keep_flagged(flags);
  if (record != nullptr) {
    record->after_count = distribution.count();
    record->after_mass = std::min(distribution.total() / total, 1.0);
  }
  CUTAWAY_OUT(span, "count", distribution.count());
}

void keep_top_p(Distribution& distribution, double mass, StageRecord* record) {
  CUTAWAY_SPAN(span, "sampling::keep_top_p", "mass", mass);
  const double wanted = mass * distribution.total();
  int64_t kept = 0;
  double sum = 0;
  bool enough = false;
  for (int64_t seen = Distribution::more(0); !enough; seen = Distribution::more(seen)) {
    const auto tokens = distribution.first(seen);
    while (!enough && kept < static_cast<int64_t>(tokens.size())) {
      sum += tokens[static_cast<size_t>(kept++)].weight;
      enough = sum >= wanted;
    }
    // Rounding may leave the sum of all below a mass just under 1: then all stay.
    if (static_cast<int64_t>(tokens.size()) < seen) break;
  }
  cut(distribution, kept, record);
  CUTAWAY_OUT(span, "count", distribution.count());
}

void keep_min_p(Distribution& distribution, double fraction, StageRecord* record) {
  CUTAWAY_SPAN(span, "sampling::keep_min_p", "fraction", fraction);
  const double lowest = fraction * distribution.first(1)[0].weight;
  int64_t kept = 1;
  bool below = false;
  for (int64_t seen = Distribution::more(0); !below; seen = Distribution::more(seen)) {
    const auto tokens = distribution.first(seen);
    while (!below && kept < static_cast<int64_t>(tokens.size())) {
      below = tokens[static_cast<size_t>(kept)].weight < lowest;
      if (!below) ++kept;
    }
    if (static_cast<int64_t>(tokens.size()) < seen) break;
  }
  cut(distribution, kept, record);
  CUTAWAY_OUT(span, "count", distribution.count());
}

void keep_largest(Distribution& distribution, StageRecord* record) {
  CUTAWAY_SPAN(span, "sampling::keep_largest");
  cut(distribution, 1, record);
  CUTAWAY_OUT(span, "id", distribution.first(1)[0].id);
}

Drawn draw(Distribution& distribution, double u) {
  CUTAWAY_SPAN(span, "sampling::draw", "u", u);
  const double total = distribution.total();
  Drawn drawn;
  double sum = 0;
  size_t i = 0;
  bool found = false;
  for (int64_t seen = Distribution::more(0); !found; seen = Distribution::more(seen)) {
    const auto tokens = distribution.first(seen);
    for (; i < tokens.size() && !found; ++i) {
      if (tokens[i].weight == 0) continue;
      const double next = sum + tokens[i].weight;
      drawn = {tokens[i].id, sum / total, next / total, tokens[i].weight / total};
      found = drawn.end > u;
      sum = next;
    }
    if (!found && static_cast<int64_t>(tokens.size()) < seen) {
      drawn.end = 1;  // rounding left the line's end below u: it belongs to the last token
      break;
    }
  }
  drawn.end = std::min(drawn.end, 1.0);
  CUTAWAY_OUT(span, "id", drawn.id, "begin", drawn.begin, "end", drawn.end, "prob", drawn.prob);
  return drawn;
}

}  // namespace cutaway::sampling
