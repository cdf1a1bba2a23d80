// A second, straightforward implementation of the sampling stages, in long double: sort everything,
// sum everything. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "sampling/sampler.h"

namespace cutaway::sampling {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct OracleToken {
  int32_t id;
  float logit;
  long double p;
};

struct OracleStage {
  std::string name;
  size_t before, after;
  long double mass;
  std::vector<int32_t> removed;
};

struct OracleChoice {
  std::vector<OracleToken> survivors;  // by logit, then id
  std::vector<OracleStage> stages;     // the cuts
  // How near a cut or the draw came to going the other way, in probability: where that is of the
  // order of rounding, the two implementations may rightly differ.
  long double narrowest = 1;
  int32_t chosen = -1;
  long double begin = 0, end = 0;
};

class Oracle {
 public:
  Oracle(std::vector<float> logits, const SamplingParams& params, std::vector<int32_t> prompt,
         std::vector<int32_t> output)
      : logits_(std::move(logits)), params_(params) {
    for (const auto& [id, bias] : params_.logit_bias) {
      logits_[at(id)] += static_cast<float>(bias);  // logits are changed in f32
    }
    std::set<int32_t> seen(prompt.begin(), prompt.end());
    seen.insert(output.begin(), output.end());
    if (params_.repeat_penalty != 1) {
      for (const int32_t id : seen) {
        float& l = logits_[at(id)];
        const auto penalty = static_cast<float>(params_.repeat_penalty);
        l = l > 0 ? l / penalty : l * penalty;
      }
    }
    for (const int32_t id : std::set<int32_t>(output.begin(), output.end())) {
      const auto count = static_cast<float>(std::count(output.begin(), output.end(), id));
      logits_[at(id)] -= count * static_cast<float>(params_.frequency_penalty) +
                         static_cast<float>(params_.presence_penalty);
    }
  }

  OracleChoice choose(double u) {
    OracleChoice out;
    const long double inverse = 1.0L / static_cast<long double>(params_.temperature);
    const float max = *std::max_element(logits_.begin(), logits_.end());
    for (size_t i = 0; i < logits_.size(); ++i) {
      if (logits_[i] == -kInf) continue;
      const auto x =
          (static_cast<long double>(logits_[i]) - static_cast<long double>(max)) * inverse;
      out.survivors.push_back({static_cast<int32_t>(i), logits_[i], std::exp(x)});
    }
    std::sort(out.survivors.begin(), out.survivors.end(),
              [](const OracleToken& a, const OracleToken& b) {
                return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
              });
    normalise(out.survivors);
    if (params_.top_k > 0) {
      cut(out, "top_k", std::min(static_cast<size_t>(params_.top_k), out.survivors.size()));
    }
    if (params_.typical_p < 1) typical(out);
    if (params_.top_p < 1) top_p(out);
    if (params_.min_p > 0) min_p(out);
    long double sum = 0;
    for (const OracleToken& token : out.survivors) {
      out.narrowest = std::min(out.narrowest, std::abs(sum + token.p - u));
      if (sum + token.p > u) {
        out.chosen = token.id;
        out.begin = sum;
        out.end = sum + token.p;
        break;
      }
      sum += token.p;
    }
    return out;
  }

 private:
  static size_t at(int32_t id) { return static_cast<size_t>(id); }

  static void normalise(std::vector<OracleToken>& tokens) {
    long double sum = 0;
    for (const OracleToken& token : tokens) sum += token.p;
    for (OracleToken& token : tokens) token.p /= sum;
  }

  static void keep(OracleChoice& out, const char* name, const std::vector<bool>& flags) {
    OracleStage stage{name, out.survivors.size(), 0, 0, {}};
    std::vector<OracleToken> kept;
    for (size_t i = 0; i < flags.size(); ++i) {
      if (flags[i]) {
        kept.push_back(out.survivors[i]);
        stage.mass += out.survivors[i].p;
      } else if (stage.removed.size() < 50) {
        stage.removed.push_back(out.survivors[i].id);
      }
    }
    stage.after = kept.size();
    out.survivors = std::move(kept);
    normalise(out.survivors);
    out.stages.push_back(std::move(stage));
  }

  static void cut(OracleChoice& out, const char* name, size_t n) {
    std::vector<bool> flags(out.survivors.size());
    for (size_t i = 0; i < n; ++i) flags[i] = true;
    keep(out, name, flags);
  }

  void typical(OracleChoice& out) const {
    long double entropy = 0;
    for (const OracleToken& t : out.survivors) entropy -= t.p > 0 ? t.p * std::log(t.p) : 0;
    std::vector<std::pair<long double, size_t>> order;
    for (size_t i = 0; i < out.survivors.size(); ++i) {
      order.emplace_back(std::abs(-std::log(out.survivors[i].p) - entropy), i);
    }
    std::sort(order.begin(), order.end());
    std::vector<bool> flags(out.survivors.size());
    long double sum = 0;
    for (size_t n = 0; n < order.size(); ++n) {
      flags[order[n].second] = true;
      sum += out.survivors[order[n].second].p;
      out.narrowest = std::min(out.narrowest, std::abs(sum - params_.typical_p));
      if (sum >= params_.typical_p) {
        if (n + 1 < order.size()) {
          // Equal deviations of unequal logits are told apart by rounding only.
          out.narrowest = std::min(out.narrowest, out.survivors[order[n].second].logit ==
                                                          out.survivors[order[n + 1].second].logit
                                                      ? 1.0L
                                                      : order[n + 1].first - order[n].first);
        }
        break;
      }
    }
    keep(out, "typical_p", flags);
  }

  void top_p(OracleChoice& out) const {
    long double sum = 0;
    size_t n = 0;
    while (n < out.survivors.size()) {
      sum += out.survivors[n++].p;
      out.narrowest = std::min(out.narrowest, std::abs(sum - params_.top_p));
      if (sum >= params_.top_p) break;
    }
    cut(out, "top_p", n);
  }

  void min_p(OracleChoice& out) const {
    const long double lowest = params_.min_p * out.survivors[0].p;
    size_t n = 1;
    while (n < out.survivors.size() && out.survivors[n].p >= lowest) ++n;
    for (const OracleToken& t : out.survivors) {
      if (t.logit != out.survivors[0].logit) {
        out.narrowest = std::min(out.narrowest, std::abs(t.p - lowest));
      }
    }
    cut(out, "min_p", n);
  }

  std::vector<float> logits_;
  SamplingParams params_;
};

inline std::vector<float> random_logits(std::mt19937& rng, size_t n) {
  std::vector<float> logits(n);
  const int kind = static_cast<int>(rng() % 4);
  std::normal_distribution<float> normal(0, kind == 0 ? 0.1f : kind == 1 ? 2.0f : 6.0f);
  for (float& l : logits) {
    l = normal(rng);
    if (kind == 3) l = std::round(l);  // many equal logits
    if (rng() % 50 == 0) l = -kInf;
    if (rng() % 97 == 0) l = -0.0f;
    if (rng() % 89 == 0) l = 0.0f;
  }
  logits[rng() % n] = 1;
  return logits;
}

inline SamplingParams random_params(std::mt19937& rng, size_t n) {
  const auto pick = [&](std::initializer_list<float> of) {
    return *(of.begin() + static_cast<ptrdiff_t>(rng() % of.size()));
  };
  SamplingParams p;
  p.temperature = pick({0.2f, 0.7f, 1, 1, 1.5f, 10});
  p.top_k = static_cast<int32_t>(pick({0, 0, 1, 5, 40, 300, 100000}));
  p.top_p = pick({1, 1, 0, 0.3f, 0.9f, 0.95f, 0.9999f});
  p.min_p = pick({0, 0, 0.02f, 0.1f, 1});
  p.typical_p = pick({1, 1, 1, 0.2f, 0.9f});
  p.repeat_penalty = pick({1, 1, 1.1f, 0.7f});
  p.presence_penalty = pick({0, 0, 0.6f, -2});
  p.frequency_penalty = pick({0, 0, 0.3f});
  for (size_t i = rng() % 4; i > 0 && rng() % 2 == 0; --i) {
    p.logit_bias[static_cast<int32_t>(rng() % n)] = pick({-100, -1.5f, 2, 100});
  }
  p.seed = rng();
  return p;
}

inline Result<int32_t> choose(const std::vector<float>& logits, const SamplingParams& params,
                              Ledger* ledger = nullptr, int64_t position = 0) {
  Sampler sampler(params, static_cast<int32_t>(logits.size()));
  return sampler.choose(logits, position, 0, ledger);
}

inline int32_t chosen(const std::vector<float>& logits, const SamplingParams& params,
                      int64_t position = 0) {
  const auto result = choose(logits, params, nullptr, position);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return result.ok() ? *result : -1;
}

}  // namespace cutaway::sampling
