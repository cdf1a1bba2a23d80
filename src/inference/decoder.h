// The autoregressive loop.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "inference/generation.h"

namespace cutaway::inference {

// Called for each token as it is chosen. Return false to end the generation.
using OnChoice = std::function<bool(const Choice& choice)>;

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
  // The whole prompt, in chunks.
  Status prefill(Generation& answer, const DecodeOptions& options);
  // The token that was chosen last, and guesses after it.
  Status append(Generation& answer, const DecodeOptions& options);

  Runner& runner_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
};

}  // namespace cutaway::inference
