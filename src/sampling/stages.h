// The stages between the model's logits and the distribution that is drawn from. Those that change
// logits work in f32 on a copy; those that cut work on a Distribution. `record`, when given, is
// filled with what the stage did; the result is the same without it.
#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "sampling/distribution.h"
#include "sampling/sampler.h"

namespace cutaway::sampling {

// logit += bias.
void add_bias(std::span<float> logits, const std::map<int32_t, double>& bias);

// For every token of the prompt or the output, once: logit > 0 ? logit / penalty : logit · penalty.
// Source: Keskar et al., "CTRL" (2019), with the sign rule of transformers.
void penalize_repetition(std::span<float> logits, const std::map<int32_t, int32_t>& prompt,
                         const std::map<int32_t, int32_t>& output, float penalty);

// For every token of the output: logit −= count · frequency + presence. Source: OpenAI's API.
void penalize_presence_frequency(std::span<float> logits, const std::map<int32_t, int32_t>& output,
                                 float presence, float frequency);

// Each keeps at least one token.
void keep_top_k(Distribution& distribution, int64_t k, StageRecord* record);
// The tokens whose −log p is nearest the entropy, by |−log p − H|, then logit, then id, until they
// hold `mass`. Source: Meister et al., "Locally Typical Sampling" (2022).
void keep_typical(Distribution& distribution, double mass, StageRecord* record);
// The fewest of the most probable that hold `mass`.
void keep_top_p(Distribution& distribution, double mass, StageRecord* record);
// Those with p ≥ fraction · p of the most probable.
void keep_min_p(Distribution& distribution, double fraction, StageRecord* record);
// The most probable one: temperature 0.
void keep_largest(Distribution& distribution, StageRecord* record);

struct Drawn {
  int32_t id = -1;
  double begin = 0, end = 1;  // its interval on the cumulative line
  double prob = 0;
};
// Walks the cumulative line of what is left, in order, to the first token whose end is above u.
Drawn draw(Distribution& distribution, double u);

}  // namespace cutaway::sampling
