// The autoregressive loop.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "inference/runner.h"
#include "sampling/sampler.h"
#include "text/tokenizer/detokenizer.h"

namespace cutaway::inference {

enum class FinishReason : uint8_t { kStop, kLength, kCancelled };
const char* finish_reason_name(FinishReason reason);  // "stop", "length", "cancelled"

// One generated token.
struct Choice {
  int32_t id = 0;
  std::optional<double> logprob;        // of the model's own distribution, when asked for
  std::vector<sampling::TopEntry> top;  // top_logprobs entries
  std::optional<sampling::Ledger> ledger;
  std::optional<Hash128> logits_hash;  // of the raw logits that it was chosen from, when asked for
  std::string text;  // what became final with it: whole characters, nothing of a stop string
};

struct DecodeOptions {
  sampling::SamplingParams sampling;  // validated
  sampling::TokenRules rules;         // tokens forced or banned; ids of the tokenizer
  int64_t context = 0;                // tokens that the sequence may hold, prompt included
  int64_t max_tokens = 0;             // ≥ 0; what is left of the context when larger
  int64_t prefill_chunk = 512;        // ≥ 1
  std::vector<std::string> stop;
  bool logprobs = false;
  int32_t top_logprobs = 0;
  bool ledger = false;
  bool logits_hashes = false;
  // Asked between prefill chunks and between tokens; true ends the generation. May be empty.
  std::function<bool()> cancelled;
};

// Called for each token as it is chosen. Return false to end the generation.
using OnChoice = std::function<bool(const Choice& choice)>;

struct Outcome {
  FinishReason finish = FinishReason::kLength;
  std::string stop;           // the stop string, or the end token's spelling
  std::string tail;           // text that was held back and became final at the end
  std::vector<int32_t> ids;   // chosen tokens, the end token included
  int64_t cached_tokens = 0;  // prompt tokens whose keys and values were there already
  int64_t prefill_ns = 0, first_token_ns = 0, decode_ns = 0;  // first_token: since the call
  Hash128 logits_hash;  // over the raw logits from which each token was chosen
};

class Decoder {
 public:
  // All outlive the decoder.
  Decoder(Runner& runner, std::shared_ptr<const text::Tokenizer> tokenizer)
      : runner_(runner), tokenizer_(std::move(tokenizer)) {}

  // Generates after `prompt`, which replaces the sequence's tokens: a common beginning is kept.
  // Errors: kInvalidArgument (an empty prompt, an empty stop string), kTooLarge (a prompt that does
  // not fit: both counts). After an error the sequence holds a prefix of the prompt.
  Result<Outcome> generate(SequenceState& sequence, std::span<const int32_t> prompt,
                           const DecodeOptions& options, const OnChoice& on_choice);

 private:
  Status check_fits(std::span<const int32_t> prompt, const DecodeOptions& options) const;
  // Logits after the last token of the prompt; empty when it was cancelled.
  Result<std::span<const float>> prefill(SequenceState& sequence, std::span<const int32_t> prompt,
                                         const DecodeOptions& options);
  Result<Choice> choose(sampling::Sampler& sampler, std::span<const float> logits, int64_t position,
                        int64_t step, const DecodeOptions& options) const;
  Result<std::span<const float>> append(SequenceState& sequence, int32_t id);

  Runner& runner_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
};

}  // namespace cutaway::inference
