// From logits to one token: an explicit, ordered list of stages over a distribution, and the ledger
// of what each stage did, so that any choice can be checked by hand.
// docs/sampling.md gives the arithmetic of every stage.
//
// Order: banned tokens (TokenRules), logit bias, repetition (prompt and output), presence and
// frequency (output only), temperature, top-k, typical-p, top-p, min-p. At temperature 0 the choice
// is the largest logit after bias and penalties (the lowest id among equals), and the later stages
// have no effect.
//
// Wherever an order of tokens matters (cuts, the walk along the cumulative line) it is one and the
// same: by logit, largest first, then by id. It is produced only as far as it is looked at.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "sampling/distribution.h"
#include "sampling/token_rules.h"

namespace cutaway::sampling {

struct SamplingParams {
  double temperature = 0;        // 0 … 100; 0: greedy
  int32_t top_k = 0;             // 0: off
  double top_p = 1;              // [0, 1]; 1: off; 0 keeps the most probable token
  double min_p = 0;              // [0, 1]; 0: off
  double typical_p = 1;          // (0, 1]; 1: off
  double repeat_penalty = 1;     // (0, 100]; 1: off
  double presence_penalty = 0;   // [−2, 2]
  double frequency_penalty = 0;  // [−2, 2]
  // id → [−100, 100], added to the logit, as OpenAI's API has it: −100 in practice bans a token,
  // +100 forces it, but a token with a logit 100 above all others survives a −100.
  std::map<int32_t, double> logit_bias;
  uint64_t seed = 0;

  // Error kInvalidArgument names the field, the value and the range; ids against vocab_size.
  Status validate(int32_t vocab_size) const;
  // Parameters that are set but have no effect at temperature 0 ("top_k", …), for a warning.
  std::vector<std::string> without_effect() const;
};

struct Candidate {
  int32_t id;
  float logit;
  double prob;
};

// What one stage did (DATA: the ledger). mass: probability under the distribution before the stage
// (which is the model's own for the first): before_mass is therefore 1, after_mass is what the
// tokens that stayed had before.
struct StageRecord {
  std::string name;  // "logit_bias", "repetition", "presence_frequency", "temperature", "top_k", …
  Json params;       // the stage's own parameters
  int64_t before_count = 0, after_count = 0;
  double before_mass = 1, after_mass = 1;
  struct Removed {
    int32_t id;
    double prob;
  };
  std::vector<Removed> removed;  // the first 50, by logit, then id
};

struct Ledger {
  int64_t position = 0;  // absolute index of the chosen token
  int64_t step = 0;
  struct Raw {
    int32_t id;
    float logit;
    double logprob;
  };
  std::vector<Raw> raw_top;         // the model's own distribution, before any stage
  double raw_entropy = 0;           // nats
  std::vector<StageRecord> stages;  // those that had an effect or were asked for, in order
  bool greedy = false;
  double draw_u = 0;  // [0, 1); unused when greedy
  double interval_begin = 0,
         interval_end = 0;  // the chosen token's interval on the cumulative line
  int32_t chosen = -1;
  int32_t chosen_rank = 0;  // by the model's own logits, 0 = largest
  double chosen_raw_prob = 0;
  double chosen_prob = 0;  // under the final distribution
  // Banned tokens. `removed` are the likeliest 50 of them, by the model's own distribution, in
  // which removed_mass is the probability of all.
  struct Mask {
    double removed_mass = 0;
    int32_t wanted = -1;  // the model's own likeliest
    std::vector<StageRecord::Removed> removed;
  };
  std::optional<Mask> mask;
  // The token was forced: no stage took part, no number was drawn.
  struct Forced {
    int32_t instead_of = -1;  // what would have been chosen
  };
  std::optional<Forced> forced;
  // The first of the final distribution, as many as were asked for of the raw one; prob is the one
  // that was drawn from. Not in the JSON.
  std::vector<Candidate> candidates;
};

// The form of schema/ledger.schema.json. Greedy: "draw" is {u: null, interval: [0, 1]}.
Json to_json(const Ledger& ledger);

// The uniform number in [0, 1) of a choice: Philox 4×32-10, key = seed, counter = (position,
// choice, purpose). 53 bits.
enum class DrawPurpose : uint32_t { kToken = 0, kDraft = 1 };
double draw_uniform(uint64_t seed, uint64_t position, uint32_t choice_index, DrawPurpose purpose);

// A seed from the system, for when none was given. Below 2^53, so that every JSON reader keeps it.
uint64_t random_seed();

// The log-probability of one token in the model's own distribution: (logit − max) − log Σ exp(logit
// − max), the sum in double in id order over eight fixed lanes. The same bits as the ledger's and
// top_logprobs'. −inf for a token whose logit is; NaN when a logit is NaN or +inf, or all are −inf.
double log_probability(std::span<const float> logits, int32_t id);

struct TopEntry {
  int32_t id;
  float logit;
  double logprob;
};
// The n largest by logit, then id, of the model's own distribution (pass the logits below
// tokenizer_size only). Tokens at −inf are left out; empty when a logit is NaN or +inf.
std::vector<TopEntry> top_logprobs(std::span<const float> logits, int32_t n);

// Per sequence: holds the counts that penalties need.
class Sampler {
 public:
  // Precondition: params.validate() was ok. Ids ≥ tokenizer_size (logits wider than the vocabulary)
  // are masked once, before anything else. `choice_index`: which of several choices of one prompt.
  Sampler(SamplingParams params, int32_t tokenizer_size, uint32_t choice_index = 0);

  // Tokens that are forced or banned from now on. Ids are in [0, tokenizer_size).
  void set_rules(TokenRules rules) { rules_ = std::move(rules); }

  // The prompt, for the repetition penalty.
  void accept_prompt(std::span<const int32_t> ids);

  // Chooses the token at absolute `position`. `logits` are the model's own and are not changed.
  // `ledger`, when given, is filled with up to raw_top entries; without it nothing but the choice
  // is computed, and the choice is the same. Errors: kInvalidFile when a logit is NaN or +inf, or
  // none is above −inf; kInvalidArgument when the bans leave no token.
  Result<int32_t> choose(std::span<const float> logits, int64_t position, int64_t step,
                         Ledger* ledger = nullptr, int32_t raw_top = 20);

  // Counts a token that became part of the output.
  void accept(int32_t id);

  const SamplingParams& params() const { return params_; }

 private:
  // The ids that are banned at a step, ascending.
  std::vector<int32_t> banned_at(int64_t step) const;
  // The choice that no rule forces.
  Result<int32_t> choose_freely(std::span<const float> logits, int64_t position, int64_t step,
                                Ledger* ledger, int32_t raw_top);
  std::span<const float> adjusted(std::span<const float> logits, std::span<const int32_t> banned,
                                  Ledger* ledger);
  void record_raw(std::span<const float> logits, std::span<const int32_t> banned, int32_t raw_top,
                  Ledger& ledger);
  int32_t choose_greedy(std::span<const float> logits, const LogitScan& scan, Ledger* ledger);
  int32_t choose_drawn(std::span<const float> logits, const LogitScan& scan, double u,
                       int32_t raw_top, Ledger* ledger);

  SamplingParams params_;
  int32_t tokenizer_size_;
  uint32_t choice_index_;
  TokenRules rules_;
  std::map<int32_t, int32_t> output_counts_;
  std::map<int32_t, int32_t> prompt_counts_;
  // Memory that is used again for every choice.
  std::vector<float> adjusted_;
  DistributionBuffers buffers_;
};

}  // namespace cutaway::sampling
