#include "inference/decoder.h"

#include <algorithm>

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

}  // namespace

// Prompt → prefill → distribution → choice → append → … until an end token, a stop string or a
// limit.
Result<Outcome> Decoder::generate(SequenceState& sequence, std::span<const int32_t> prompt,
                                  const DecodeOptions& options, const OnChoice& on_choice) {
  CUTAWAY_SPAN(span, "inference::Decoder::generate", "prompt", prompt, "max_tokens",
               options.max_tokens, "context", options.context);
  const int64_t start = now_ns();
  CUTAWAY_TRY(check_fits(prompt, options));
  CUTAWAY_ASSIGN(text::StopMatcher stops, text::StopMatcher::create(options.stop));
  text::StreamDetokenizer detokenizer(tokenizer_, false);
  sampling::Sampler sampler(options.sampling, tokenizer_->vocab_size());
  sampler.set_rules(options.rules);
  sampler.accept_prompt(prompt);
  StreamHash hash;
  Outcome out;
  const auto prompt_length = static_cast<int64_t>(prompt.size());
  const int64_t limit = std::min(options.max_tokens, options.context - prompt_length);
  if (limit == 0) return out;

  out.cached_tokens = keep_common_prefix(sequence, prompt, runner_.edits());
  CUTAWAY_ASSIGN(std::span<const float> logits, prefill(sequence, prompt, options));
  out.prefill_ns = now_ns() - start;
  for (int64_t step = 0;; ++step) {
    const int64_t position = prompt_length + step;
    const trace::At at({sequence.run, sequence.seq, int32_t(step), int32_t(position), -1});
    CUTAWAY_PHASE(token_span, trace::Phase::kGenerate, "inference::Decoder::token", "step", step);
    if (logits.empty() || (options.cancelled && options.cancelled())) {
      out.finish = FinishReason::kCancelled;
      break;
    }
    if (step > 0) {
      CUTAWAY_ASSIGN(logits, append(sequence, out.ids.back()));
    }
    hash.update(logits.data(), logits.size_bytes());
    CUTAWAY_ASSIGN(Choice choice, choose(sampler, logits, position, step, options));
    if (options.logits_hashes) choice.logits_hash = xxh3_128(logits.data(), logits.size_bytes());
    out.ids.push_back(choice.id);
    sampler.accept(choice.id);
    if (step == 0) out.first_token_ns = now_ns() - start;

    text::StopMatcher::Step text = stops.push(detokenizer.push(choice.id));
    choice.text = std::move(text.text);
    CUTAWAY_OUT(token_span, "id", choice.id, "piece", tokenizer_->piece(choice.id), "text",
                choice.text);
    const bool wanted = !on_choice || on_choice(choice);
    if (text.stopped || is_end(*tokenizer_, choice.id)) {
      out.finish = FinishReason::kStop;
      out.stop = text.stopped ? text.stop : tokenizer_->piece(choice.id);
      break;
    }
    if (!wanted) out.finish = FinishReason::kCancelled;
    if (!wanted || step + 1 == limit) break;  // by the limit: "length"
  }
  out.tail = stops.push(detokenizer.finish()).text + stops.finish();
  if (stops.stopped() && out.finish == FinishReason::kLength) {
    out.finish = FinishReason::kStop;
    out.stop = stops.matched();
  }
  out.decode_ns = now_ns() - start - out.first_token_ns;
  out.logits_hash = hash.digest();
  CUTAWAY_OUT(span, "finish", finish_reason_name(out.finish), "ids", out.ids, "n", out.ids.size(),
              "logits_hash", out.logits_hash.hex());
  return out;
}

Status Decoder::check_fits(std::span<const int32_t> prompt, const DecodeOptions& options) const {
  CUTAWAY_SPAN(span, "inference::Decoder::check_fits", "tokens", prompt.size(), "max_tokens",
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

Result<std::span<const float>> Decoder::prefill(SequenceState& sequence,
                                                std::span<const int32_t> prompt,
                                                const DecodeOptions& options) {
  CUTAWAY_PHASE(span, trace::Phase::kPrefill, "inference::Decoder::prefill", "tokens",
                prompt.size(), "cached", sequence.length(), "chunk", options.prefill_chunk);
  std::span<const float> logits;
  auto at = static_cast<size_t>(sequence.length());
  while (at < prompt.size()) {
    if (options.cancelled && options.cancelled()) {
      logits = {};
      break;
    }
    const size_t n = std::min(static_cast<size_t>(options.prefill_chunk), prompt.size() - at);
    const bool last = at + n == prompt.size();
    const StepInput input{&sequence, prompt.subspan(at, n),
                          last ? WantLogits::kLast : WantLogits::kNone};
    CUTAWAY_ASSIGN(const ops::Rows rows, runner_.step(std::span(&input, 1)));
    if (last) logits = {rows.row(0), static_cast<size_t>(rows.d)};
    at += n;
  }
  CUTAWAY_OUT(span, "length", sequence.length());
  return logits;
}

Result<Choice> Decoder::choose(sampling::Sampler& sampler, std::span<const float> logits,
                               int64_t position, int64_t step, const DecodeOptions& options) const {
  CUTAWAY_SPAN(span, "inference::Decoder::choose", "position", position, "step", step,
               "top_logprobs", options.top_logprobs);
  // A head may be wider than the vocabulary (rows that pad it): ids past the tokenizer's end are no
  // tokens, and have no share in any distribution.
  logits = logits.first(static_cast<size_t>(tokenizer_->vocab_size()));
  Choice choice;
  if (options.ledger) choice.ledger.emplace();
  CUTAWAY_ASSIGN(choice.id,
                 sampler.choose(logits, position, step, choice.ledger ? &*choice.ledger : nullptr));
  if (options.top_logprobs > 0) choice.top = sampling::top_logprobs(logits, options.top_logprobs);
  if (options.logprobs) choice.logprob = sampling::log_probability(logits, choice.id);
  CUTAWAY_OUT(span, "id", choice.id, "top", choice.top.size());
  return choice;
}

Result<std::span<const float>> Decoder::append(SequenceState& sequence, int32_t id) {
  CUTAWAY_SPAN(span, "inference::Decoder::append", "id", id, "length", sequence.length());
  const StepInput input{&sequence, std::span(&id, 1), WantLogits::kLast};
  CUTAWAY_ASSIGN(const ops::Rows rows, runner_.step(std::span(&input, 1)));
  CUTAWAY_OUT(span, "logits", rows.view(), "length", sequence.length());
  return std::span<const float>(rows.row(0), static_cast<size_t>(rows.d));
}

}  // namespace cutaway::inference
