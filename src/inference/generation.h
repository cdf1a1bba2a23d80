// One answer while it is made: what has to be computed next, and how a token is chosen from what
// came of it. Who computes it, alone or together with others, is up to the caller.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "inference/ngram_draft.h"
#include "inference/runner.h"
#include "kv/prefix_tree.h"
#include "sampling/sampler.h"
#include "text/tokenizer/detokenizer.h"

namespace cutaway::inference {

enum class FinishReason : uint8_t { kStop, kLength, kCancelled };
const char* finish_reason_name(FinishReason reason);  // "stop", "length", "cancelled"

// A guess of a token, made before the pass that verified it.
struct Draft {
  int32_t id = 0;
  const char* source = "";  // "ngram"
  bool accepted = false;    // it is what was chosen
};

// One generated token.
struct Choice {
  int32_t id = 0;
  std::optional<double> logprob;        // of the model's own distribution, when asked for
  std::vector<sampling::TopEntry> top;  // top_logprobs entries
  std::optional<sampling::Ledger> ledger;
  std::optional<Hash128> logits_hash;  // of the raw logits that it was chosen from, when asked for
  std::string text;  // what became final with it: whole characters, nothing of a stop string
  std::optional<Draft> draft;  // where one was verified with it
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
  // The most tokens that are guessed from what the text has said before, and verified in one pass:
  // what is chosen, and its bits, do not depend on it. 0: none.
  int64_t draft_tokens = 0;
  // Asked between prefill chunks and between tokens; true ends the generation. May be empty.
  std::function<bool()> cancelled;
};

struct Outcome {
  FinishReason finish = FinishReason::kLength;
  std::string stop;                   // the stop string, or the end token's spelling
  std::string tail;                   // text that was held back and became final at the end
  std::vector<int32_t> ids;           // chosen tokens, the end token included
  int64_t cached_tokens = 0;          // prompt tokens whose keys and values were there already
  int64_t drafted = 0, accepted = 0;  // tokens that were guessed, and guessed right
  int64_t prefill_ns = 0, first_token_ns = 0, decode_ns = 0;  // first_token: since the call
  Hash128 logits_hash;  // over the raw logits from which each token was chosen
};

class Generation {
 public:
  // Of the answer to `prompt`, which replaces the sequence's tokens: a common beginning is kept,
  // unless it or what follows is that of an intervention (`edits`). Sequence, prompt and options
  // outlive it. Errors: kInvalidArgument (an empty prompt, an empty stop string), kTooLarge (a
  // prompt that does not fit: both counts).
  static Result<Generation> begin(std::shared_ptr<const text::Tokenizer> tokenizer,
                                  SequenceState& sequence, std::span<const int32_t> prompt,
                                  const DecodeOptions& options, bool edits);

  // While it has not ended: tokens for next(), until there are logits to choose from.
  bool ended() const { return ended_; }
  bool has_logits() const { return row_ < logits_.n; }
  bool prefilling() const { return !ended_ && sequence_->length() < std::ssize(prompt_); }
  int64_t lacking() const { return position() - sequence_->length(); }  // tokens

  // What its sequence lacks, at most `most` tokens: of the prompt, or the one that was chosen last,
  // and guesses after it. Valid until it was computed. Precondition: neither ended() nor
  // has_logits().
  StepInput next(int64_t most);
  // They were appended. `logits`: of those for which next() wanted them; they must stay until the
  // choices.
  void computed(const ops::Rows& logits);

  // Lets an empty sequence begin with what the tree holds of what it lacks, all but the last token.
  void begin_with(kv::PrefixTree& tree);

  // The next token: ends the answer with an end token, a stop string or the limit. Precondition:
  // has_logits().
  Result<Choice> choose();
  // Ends it, unless it came to a stop by itself.
  void cancel();

  // Of the choice that comes next.
  int64_t step() const { return std::ssize(out_.ids); }
  int64_t position() const { return std::ssize(prompt_) + step(); }
  const SequenceState& sequence() const { return *sequence_; }
  int64_t prompt_tokens() const { return std::ssize(prompt_); }
  int64_t cached_tokens() const { return out_.cached_tokens; }

  // What came of it. Once, when it has ended.
  Outcome finish();

 private:
  Generation(std::shared_ptr<const text::Tokenizer> tokenizer, SequenceState& sequence,
             std::span<const int32_t> prompt, const DecodeOptions& options,
             text::StopMatcher stops);
  Result<Choice> pick(std::span<const float> logits);
  void drop_guesses();

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  SequenceState* sequence_;
  std::span<const int32_t> prompt_;
  const DecodeOptions* options_;
  text::StopMatcher stops_;
  text::StreamDetokenizer detokenizer_;
  sampling::Sampler sampler_;
  StreamHash hash_;
  ops::Rows logits_;  // of the last pass: of the token that was chosen last, then of each guess
  int64_t row_ = 0;   // the next one to choose from
  NgramDraft ngrams_;
  DraftPace pace_;
  std::vector<int32_t> input_;  // with guesses: what was chosen last, then those
  Outcome out_;
  int64_t start_ns_, limit_;
  bool ended_ = false;
};

}  // namespace cutaway::inference
