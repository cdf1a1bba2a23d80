#include "inference/generation.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "trace/trace.h"

namespace cutaway::inference {

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

namespace {

// Keeps the tokens that the sequence shares with the prompt; the last one is always computed again,
// since its logits are needed. Nothing is kept when they, or what follows, are those of an
// intervention. Returns how many were kept.
int64_t keep_common_prefix(SequenceState& sequence, std::span<const int32_t> prompt, bool edits) {
  if (edits || sequence.edited) sequence.truncate(0);
  const size_t most = std::min(sequence.tokens.size(), prompt.size() - 1);
  size_t same = 0;
  while (same < most && sequence.tokens[same] == prompt[same]) ++same;
  sequence.truncate(static_cast<int64_t>(same));
  return static_cast<int64_t>(same);
}

bool is_end(const text::Tokenizer& tokenizer, int32_t id) {
  const std::vector<int32_t>& ends = tokenizer.end_ids();
  return std::binary_search(ends.begin(), ends.end(), id);
}

Status check_fits(std::span<const int32_t> prompt, const DecodeOptions& options) {
  CUTAWAY_SPAN(span, "inference::check_fits", "tokens", prompt.size(), "max_tokens",
               options.max_tokens, "context", options.context);
  if (prompt.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "the prompt is empty (0 tokens): there is nothing to continue", "prompt"};
  }
  const auto n = static_cast<int64_t>(prompt.size());
  if (n < options.context || (n == options.context && options.max_tokens == 0)) {
    CUTAWAY_OUT(span, "room", options.context - n);
    return {};
  }
  return Error{ErrorCode::kTooLarge,
               "the prompt has " + std::to_string(n) + " tokens; the context holds " +
                   std::to_string(options.context) +
                   (n == options.context ? ", which leaves no room for an answer" : ""),
               "prompt"};
}

}  // namespace

Generation::Generation(std::shared_ptr<const text::Tokenizer> tokenizer, SequenceState& sequence,
                       std::span<const int32_t> prompt, const DecodeOptions& options,
                       text::StopMatcher stops)
    : tokenizer_(std::move(tokenizer)),
      sequence_(&sequence),
      prompt_(prompt),
      options_(&options),
      stops_(std::move(stops)),
      detokenizer_(tokenizer_, false),
      sampler_(options.sampling, tokenizer_->vocab_size()),
      pace_(options.draft_tokens),
      start_ns_(now_ns()),
      limit_(std::min(options.max_tokens, options.context - std::ssize(prompt))) {}

Result<Generation> Generation::begin(std::shared_ptr<const text::Tokenizer> tokenizer,
                                     SequenceState& sequence, std::span<const int32_t> prompt,
                                     const DecodeOptions& options, bool edits) {
  CUTAWAY_SPAN(span, "inference::Generation::begin", "tokens", prompt.size(), "max_tokens",
               options.max_tokens, "context", options.context);
  CUTAWAY_TRY(check_fits(prompt, options));
  CUTAWAY_ASSIGN(text::StopMatcher stops, text::StopMatcher::create(options.stop));
  Generation out(std::move(tokenizer), sequence, prompt, options, std::move(stops));
  out.sampler_.set_rules(options.rules);
  out.sampler_.accept_prompt(prompt);
  if (options.draft_tokens > 0) out.ngrams_.add(prompt);
  out.ended_ = out.limit_ == 0;
  if (!out.ended_) out.out_.cached_tokens = keep_common_prefix(sequence, prompt, edits);
  CUTAWAY_OUT(span, "cached", out.out_.cached_tokens, "limit", out.limit_);
  return out;
}

StepInput Generation::next(int64_t most) {
  CUTAWAY_SPAN(span, "inference::Generation::next", "most", most);
  // A sequence whose pages went to others lacks what it had, prompt and answer.
  const int64_t at = sequence_->length(), prompt = std::ssize(prompt_), all = position();
  const bool of_prompt = at < prompt;
  const auto tokens = of_prompt ? prompt_.subspan(static_cast<size_t>(at))
                                : std::span(out_.ids).subspan(static_cast<size_t>(at - prompt));
  input_.clear();
  if (!of_prompt && tokens.size() == 1 && options_->draft_tokens > 0) {
    // Never beyond the limit: no choice is made after the last one's.
    const int64_t room = std::min(most - 1, limit_ - step() - 1);
    const int64_t n = std::min(room, pace_.next());
    if (n > 0) input_ = ngrams_.guess(n);
    out_.drafted += std::ssize(input_);
    if (!input_.empty()) {
      input_.insert(input_.begin(), tokens[0]);
      CUTAWAY_OUT(span, "tokens", std::span<const int32_t>(input_));
      return {sequence_, input_, WantLogits::kAll};
    }
  }
  const auto n = static_cast<size_t>(std::min(most, std::ssize(tokens)));
  const bool last = at + static_cast<int64_t>(n) == all;
  CUTAWAY_OUT(span, "tokens", tokens.first(n), "last", last);
  return {sequence_, tokens.first(n), last ? WantLogits::kLast : WantLogits::kNone};
}

void Generation::computed(const ops::Rows& logits) {
  CUTAWAY_SPAN(span, "inference::Generation::computed", "logits", logits.n);
  logits_ = logits;
  row_ = 0;
  if (step() == 0 && logits.n > 0) out_.prefill_ns = now_ns() - start_ns_;
  CUTAWAY_OUT(span, "step", step());
}

void Generation::begin_with(kv::PrefixTree& tree) {
  CUTAWAY_SPAN(span, "inference::Generation::begin_with", "tokens", position());
  CUTAWAY_CHECK(sequence_->length() == 0);
  std::vector<int32_t> tokens(prompt_.begin(), prompt_.end());
  tokens.insert(tokens.end(), out_.ids.begin(), out_.ids.end());
  const int64_t n = tree.begin(std::span(tokens).first(tokens.size() - 1), sequence_->kv);
  tokens.resize(static_cast<size_t>(n));
  sequence_->tokens = std::move(tokens);
  if (step() == 0) out_.cached_tokens = n;
  CUTAWAY_OUT(span, "length", n);
}

Result<Choice> Generation::choose() {
  CUTAWAY_SPAN(span, "inference::Generation::choose", "step", step());
  const std::span<const float> logits{logits_.row(row_++), static_cast<size_t>(logits_.d)};
  hash_.update(logits.data(), logits.size_bytes());
  CUTAWAY_ASSIGN(Choice choice, pick(logits));
  if (options_->logits_hashes) choice.logits_hash = xxh3_128(logits.data(), logits.size_bytes());
  out_.ids.push_back(choice.id);
  sampler_.accept(choice.id);
  if (options_->draft_tokens > 0) ngrams_.add(std::span(&choice.id, 1));
  if (step() == 1) out_.first_token_ns = now_ns() - start_ns_;
  text::StopMatcher::Step text = stops_.push(detokenizer_.push(choice.id));
  choice.text = std::move(text.text);
  if (text.stopped || is_end(*tokenizer_, choice.id)) {
    out_.finish = FinishReason::kStop;
    out_.stop = text.stopped ? text.stop : tokenizer_->piece(choice.id);
    ended_ = true;
  }
  if (step() == limit_) ended_ = true;  // "length", unless it stopped
  // The next row is of the next choice, if what was guessed is what was chosen.
  bool more = false;
  if (!input_.empty() && row_ < logits_.n) {
    const int32_t guess = input_[static_cast<size_t>(row_)];
    choice.draft = {guess, "ngram", guess == choice.id};
    if (choice.draft->accepted) ++out_.accepted;
    more = choice.draft->accepted && !ended_;
  }
  if (!more) {
    if (!input_.empty()) drop_guesses();
    logits_ = {};
    row_ = 0;
  }
  CUTAWAY_OUT(span, "id", choice.id, "ended", ended_);
  return choice;
}

// What was guessed and not chosen goes.
void Generation::drop_guesses() {
  CUTAWAY_SPAN(span, "inference::Generation::drop_guesses", "guesses", input_.size() - 1);
  const bool right = sequence_->length() == position() - 1;
  const int64_t guessed = std::ssize(input_) - 1;
  pace_.report(guessed, right ? guessed : row_ - 1);
  sequence_->truncate(position() - 1);
  input_.clear();
  CUTAWAY_OUT(span, "length", sequence_->length());
}

Result<Choice> Generation::pick(std::span<const float> logits) {
  CUTAWAY_SPAN(span, "inference::Generation::pick", "position", position(), "step", step(),
               "top_logprobs", options_->top_logprobs);
  // A head may be wider than the vocabulary (rows that pad it): ids past the tokenizer's end are no
  // tokens, and have no share in any distribution.
  logits = logits.first(static_cast<size_t>(tokenizer_->vocab_size()));
  Choice choice;
  if (options_->ledger) choice.ledger.emplace();
  CUTAWAY_ASSIGN(choice.id, sampler_.choose(logits, position(), step(),
                                            choice.ledger ? &*choice.ledger : nullptr));
  if (options_->top_logprobs > 0) {
    choice.top = sampling::top_logprobs(logits, options_->top_logprobs);
  }
  if (options_->logprobs) choice.logprob = sampling::log_probability(logits, choice.id);
  CUTAWAY_OUT(span, "id", choice.id, "top", choice.top.size());
  return choice;
}

void Generation::cancel() {
  if (!ended_ || out_.finish != FinishReason::kStop) out_.finish = FinishReason::kCancelled;
  ended_ = true;
  if (!input_.empty()) drop_guesses();
  logits_ = {};
  row_ = 0;
}

Outcome Generation::finish() {
  CUTAWAY_SPAN(span, "inference::Generation::finish", "n", out_.ids.size());
  out_.tail = stops_.push(detokenizer_.finish()).text + stops_.finish();
  if (stops_.stopped() && out_.finish == FinishReason::kLength) {
    out_.finish = FinishReason::kStop;
    out_.stop = stops_.matched();
  }
  out_.decode_ns = now_ns() - start_ns_ - out_.first_token_ns;
  out_.logits_hash = hash_.digest();
  CUTAWAY_OUT(span, "finish", finish_reason_name(out_.finish), "tail", out_.tail);
  return std::move(out_);
}

}  // namespace cutaway::inference
