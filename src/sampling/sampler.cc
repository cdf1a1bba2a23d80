#include "sampling/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "sampling/stages.h"
#include "trace/trace.h"

namespace cutaway::sampling {
namespace {

int64_t count_possible(std::span<const float> logits) {
  return std::count_if(logits.begin(), logits.end(),
                       [](float l) { return l > -std::numeric_limits<float>::infinity(); });
}

// A stage that changes logits and removes nothing.
void record_change(Ledger* ledger, const char* name, Json params, int64_t count) {
  if (ledger == nullptr) return;
  StageRecord record;
  record.name = name;
  record.params = std::move(params);
  record.before_count = record.after_count = count;
  ledger->stages.push_back(std::move(record));
}

// The record that a cutting stage will fill, or null.
StageRecord* begin_record(Ledger* ledger, const char* name, Json params) {
  if (ledger == nullptr) return nullptr;
  StageRecord record;
  record.name = name;
  record.params = std::move(params);
  ledger->stages.push_back(std::move(record));
  return &ledger->stages.back();
}

Json bias_json(const std::map<int32_t, double>& bias) {
  Json out = Json::object();
  for (const auto& [id, value] : bias) out[std::to_string(id)] = value;
  return out;
}

Error damaged_logits(std::span<const float> logits, int64_t position) {
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float l) {
    return std::isnan(l) || l == std::numeric_limits<float>::infinity();
  });
  if (bad == logits.end()) {
    return {ErrorCode::kInvalidFile,
            fmt::format("no token is possible at position {}: all {} logits are -inf", position,
                        logits.size()),
            "logits"};
  }
  return {ErrorCode::kInvalidFile,
          fmt::format("the logit of token {} at position {} is {}, expected a finite number: the "
                      "model's weights give no usable answer",
                      bad - logits.begin(), position, std::isnan(*bad) ? "NaN" : "+inf"),
          "logits"};
}

// The model's own logits are usable: what the request adds or divides by made them overflow.
Error overflowed_logits(const SamplingParams& params, int64_t position) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("at position {} the logits overflow under repeat_penalty {}, logit_bias and "
                      "the other penalties: values nearer to their defaults are needed",
                      position, params.repeat_penalty),
          "repeat_penalty"};
}

Error all_banned(size_t banned, int64_t position) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("tokens.ban leaves no token at position {}: {} are banned, all others are "
                      "impossible",
                      position, banned),
          "tokens.ban"};
}

constexpr size_t kRemovedKept = 50;

// What banned tokens had in the model's own distribution.
Ledger::Mask mask_of(Distribution& raw, std::span<const float> logits,
                     std::span<const int32_t> banned) {
  Ledger::Mask mask;
  mask.wanted = raw.first(1)[0].id;
  std::vector<WeightedToken> tokens;
  for (const int32_t id : banned) tokens.push_back({id, logits[static_cast<size_t>(id)], 0});
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const auto& a, const auto& b) { return a.logit > b.logit; });
  for (const WeightedToken& token : tokens) {
    const double prob = kernels::exp_f64(raw.log_probability(token));
    mask.removed_mass = std::min(1.0, mask.removed_mass + prob);
    if (mask.removed.size() < kRemovedKept) mask.removed.push_back({token.id, prob});
  }
  return mask;
}

}  // namespace

double log_probability(std::span<const float> logits, int32_t id) {
  CUTAWAY_SPAN(span, "sampling::log_probability", "n", logits.size(), "id", id);
  const LogitScan scan = scan_logits(logits);
  if (scan.damaged || scan.argmax < 0) return std::numeric_limits<double>::quiet_NaN();
  const double result = static_cast<double>(logits[static_cast<size_t>(id)]) -
                        static_cast<double>(scan.max) -
                        kernels::log_f64(exp_sums(logits, scan.max, 1.0).sum);
  CUTAWAY_OUT(span, "value", result);
  return result;
}

std::vector<TopEntry> top_logprobs(std::span<const float> logits, int32_t n) {
  CUTAWAY_SPAN(span, "sampling::top_logprobs", "vocab", logits.size(), "n", n);
  DistributionBuffers buffers;
  const LogitScan scan = scan_logits(logits, &buffers.block_max);
  std::vector<TopEntry> out;
  if (scan.damaged || scan.argmax < 0) return out;
  Distribution distribution(logits, scan, 1.0, buffers);
  for (const WeightedToken& token : distribution.first(n)) {
    out.push_back({token.id, token.logit, distribution.log_probability(token)});
  }
  CUTAWAY_OUT(span, "n", out.size());
  return out;
}

Sampler::Sampler(SamplingParams params, int32_t tokenizer_size, uint32_t choice_index)
    : params_(std::move(params)), tokenizer_size_(tokenizer_size), choice_index_(choice_index) {
  CUTAWAY_SPAN(span, "sampling::Sampler", "temperature", params_.temperature, "tokenizer_size",
               tokenizer_size, "choice_index", choice_index, "seed", params_.seed);
  CUTAWAY_CHECK(tokenizer_size > 0);
}

void Sampler::accept_prompt(std::span<const int32_t> ids) {
  CUTAWAY_SPAN(span, "sampling::Sampler::accept_prompt", "ids", ids);
  if (params_.repeat_penalty == 1) return;
  for (const int32_t id : ids) ++prompt_counts_[id];
}

void Sampler::accept(int32_t id) {
  CUTAWAY_SPAN(span, "sampling::Sampler::accept", "id", id);
  ++output_counts_[id];
}

std::vector<int32_t> Sampler::banned_at(int64_t step) const {
  CUTAWAY_SPAN(span, "sampling::Sampler::banned_at", "step", step, "bans", rules_.bans.size());
  std::vector<int32_t> out;
  for (const TokenRules::Ban& ban : rules_.bans) {
    if (ban.holds(step)) out.insert(out.end(), ban.ids.begin(), ban.ids.end());
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  CUTAWAY_OUT(span, "n", out.size());
  return out;
}

// The logits after bans, bias and penalties: the model's own where nothing changes them.
std::span<const float> Sampler::adjusted(std::span<const float> logits,
                                         std::span<const int32_t> banned, Ledger* ledger) {
  CUTAWAY_SPAN(span, "sampling::Sampler::adjusted", "n", logits.size(), "prompt_tokens",
               prompt_counts_.size(), "output_tokens", output_counts_.size());
  const SamplingParams& p = params_;
  const bool repeats = p.repeat_penalty != 1 && !(prompt_counts_.empty() && output_counts_.empty());
  const bool counts =
      (p.presence_penalty != 0 || p.frequency_penalty != 0) && !output_counts_.empty();
  const bool changes = !banned.empty() || !p.logit_bias.empty() || repeats || counts;
  if (changes) {
    adjusted_.assign(logits.begin(), logits.end());
    if (!p.logit_bias.empty()) add_bias(adjusted_, p.logit_bias);
    if (p.repeat_penalty != 1) {
      penalize_repetition(adjusted_, prompt_counts_, output_counts_,
                          static_cast<float>(p.repeat_penalty));
    }
    penalize_presence_frequency(adjusted_, output_counts_, static_cast<float>(p.presence_penalty),
                                static_cast<float>(p.frequency_penalty));
    for (const int32_t id : banned) {
      adjusted_[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
    }
  }
  if (ledger != nullptr) {
    const int64_t count = count_possible(banned.empty() ? logits : adjusted_);
    if (!p.logit_bias.empty()) {
      record_change(ledger, "logit_bias", {{"logit_bias", bias_json(p.logit_bias)}}, count);
    }
    if (p.repeat_penalty != 1) {
      record_change(ledger, "repetition",
                    {{"repeat_penalty", p.repeat_penalty},
                     {"prompt_tokens", prompt_counts_.size()},
                     {"output_tokens", output_counts_.size()}},
                    count);
    }
    if (p.presence_penalty != 0 || p.frequency_penalty != 0) {
      record_change(ledger, "presence_frequency",
                    {{"presence_penalty", p.presence_penalty},
                     {"frequency_penalty", p.frequency_penalty},
                     {"output_tokens", output_counts_.size()}},
                    count);
    }
  }
  CUTAWAY_OUT(span, "changes", changes);
  return changes ? std::span<const float>(adjusted_) : logits;
}

void Sampler::record_raw(std::span<const float> logits, std::span<const int32_t> banned,
                         int32_t raw_top, Ledger& ledger) {
  CUTAWAY_SPAN(span, "sampling::Sampler::record_raw", "n", logits.size(), "raw_top", raw_top);
  const LogitScan scan = scan_logits(logits, &buffers_.block_max);
  if (scan.damaged || scan.argmax < 0) return;
  Distribution raw(logits, scan, 1.0, buffers_);
  ledger.raw_entropy = raw.entropy();
  for (const WeightedToken& token : raw.first(raw_top)) {
    ledger.raw_top.push_back({token.id, token.logit, raw.log_probability(token)});
  }
  if (!banned.empty()) ledger.mask = mask_of(raw, logits, banned);
  const float chosen = logits[static_cast<size_t>(ledger.chosen)];
  ledger.chosen_raw_prob = kernels::exp_f64(raw.log_probability({ledger.chosen, chosen, 0}));
  int32_t before = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    before +=
        logits[i] > chosen || (logits[i] == chosen && static_cast<int32_t>(i) < ledger.chosen);
  }
  ledger.chosen_rank = before;
  CUTAWAY_OUT(span, "rank", before, "prob", ledger.chosen_raw_prob, "entropy", ledger.raw_entropy);
}

int32_t Sampler::choose_greedy(std::span<const float> logits, const LogitScan& scan,
                               Ledger* ledger) {
  CUTAWAY_SPAN(span, "sampling::Sampler::choose_greedy", "n", logits.size());
  if (ledger != nullptr) {
    Distribution distribution(logits, scan, 1.0, buffers_);
    keep_largest(distribution, begin_record(ledger, "temperature", {{"temperature", 0.0}}));
    ledger->greedy = true;
    ledger->interval_end = 1;
    ledger->chosen_prob = 1;
    ledger->candidates.push_back({scan.argmax, scan.max, 1.0});
  }
  CUTAWAY_OUT(span, "id", scan.argmax, "logit", scan.max);
  return scan.argmax;
}

int32_t Sampler::choose_drawn(std::span<const float> logits, const LogitScan& scan, double u,
                              int32_t raw_top, Ledger* ledger) {
  CUTAWAY_SPAN(span, "sampling::Sampler::choose_drawn", "n", logits.size(), "u", u, "temperature",
               params_.temperature);
  const SamplingParams& p = params_;
  // Below it all weight is the largest's, and beyond it 1 / temperature would be no number.
  constexpr double kLeast = 1e-60;
  Distribution distribution(logits, scan, 1.0 / std::max(p.temperature, kLeast), buffers_);
  if (ledger != nullptr) {
    record_change(ledger, "temperature", {{"temperature", p.temperature}}, distribution.count());
  }
  if (p.top_k > 0) {
    keep_top_k(distribution, p.top_k, begin_record(ledger, "top_k", {{"top_k", p.top_k}}));
  }
  if (p.typical_p < 1) {
    keep_typical(distribution, p.typical_p,
                 begin_record(ledger, "typical_p", {{"typical_p", p.typical_p}}));
  }
  if (p.top_p < 1) {
    keep_top_p(distribution, p.top_p, begin_record(ledger, "top_p", {{"top_p", p.top_p}}));
  }
  if (p.min_p > 0) {
    keep_min_p(distribution, p.min_p, begin_record(ledger, "min_p", {{"min_p", p.min_p}}));
  }
  const Drawn drawn = draw(distribution, u);
  if (ledger != nullptr) {
    ledger->draw_u = u;
    ledger->interval_begin = drawn.begin;
    ledger->interval_end = drawn.end;
    ledger->chosen_prob = drawn.prob;
    const double total = distribution.total();
    for (const WeightedToken& token : distribution.first(raw_top)) {
      ledger->candidates.push_back({token.id, token.logit, token.weight / total});
    }
  }
  CUTAWAY_OUT(span, "id", drawn.id, "prob", drawn.prob, "begin", drawn.begin, "end", drawn.end);
  return drawn.id;
}

Result<int32_t> Sampler::choose(std::span<const float> logits, int64_t position, int64_t step,
                                Ledger* ledger, int32_t raw_top) {
  CUTAWAY_SPAN(span, "sampling::Sampler::choose", "n", logits.size(), "position", position, "step",
               step, "ledger", ledger != nullptr);
  const std::optional<int32_t> forced = rules_.forced_at(step);
  if (!forced) {
    CUTAWAY_ASSIGN(const int32_t chosen, choose_freely(logits, position, step, ledger, raw_top));
    CUTAWAY_OUT(span, "id", chosen);
    return chosen;
  }
  CUTAWAY_ASSIGN(const int32_t instead_of, choose_freely(logits, position, step, nullptr, raw_top));
  if (ledger != nullptr) {
    *ledger = {};
    ledger->position = position;
    ledger->step = step;
    ledger->chosen = *forced;
    ledger->greedy = true;  // no number decides
    ledger->interval_end = ledger->chosen_prob = 1;
    ledger->forced = {instead_of};
    const std::span<const float> own =
        logits.first(std::min(logits.size(), static_cast<size_t>(tokenizer_size_)));
    ledger->candidates.push_back({*forced, own[static_cast<size_t>(*forced)], 1.0});
    record_raw(own, {}, raw_top, *ledger);
  }
  CUTAWAY_OUT(span, "id", *forced, "instead_of", instead_of);
  return *forced;
}

Result<int32_t> Sampler::choose_freely(std::span<const float> logits, int64_t position,
                                       int64_t step, Ledger* ledger, int32_t raw_top) {
  CUTAWAY_SPAN(span, "sampling::Sampler::choose_freely", "n", logits.size(), "position", position);
  if (ledger != nullptr) *ledger = {};
  const std::span<const float> own =
      logits.first(std::min(logits.size(), static_cast<size_t>(tokenizer_size_)));
  const std::vector<int32_t> banned =
      rules_.bans.empty() ? std::vector<int32_t>() : banned_at(step);
  const std::span<const float> adjusted_logits = adjusted(own, banned, ledger);
  const bool only_the_largest = params_.temperature == 0 && ledger == nullptr;
  const LogitScan scan =
      scan_logits(adjusted_logits, only_the_largest ? nullptr : &buffers_.block_max);
  if (scan.damaged || scan.argmax < 0) {
    const LogitScan own_scan = scan_logits(own);
    if (own_scan.damaged || own_scan.argmax < 0) return damaged_logits(own, position);
    if (!scan.damaged && !banned.empty()) return all_banned(banned.size(), position);
    return overflowed_logits(params_, position);
  }
  int32_t chosen = 0;
  if (params_.temperature == 0) {
    chosen = choose_greedy(adjusted_logits, scan, ledger);
  } else {
    const double u = draw_uniform(params_.seed, static_cast<uint64_t>(position), choice_index_,
                                  DrawPurpose::kToken);
    chosen = choose_drawn(adjusted_logits, scan, u, raw_top, ledger);
  }
  if (ledger != nullptr) {
    ledger->position = position;
    ledger->step = step;
    ledger->chosen = chosen;
    record_raw(own, banned, raw_top, *ledger);
  }
  CUTAWAY_OUT(span, "id", chosen);
  return chosen;
}

}  // namespace cutaway::sampling
