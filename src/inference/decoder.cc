#include "inference/decoder.h"

#include "trace/trace.h"

namespace cutaway::inference {

// Prompt → prefill → distribution → choice → append → … until an end token, a stop string or a
// limit.
Result<Outcome> Decoder::generate(SequenceState& sequence, std::span<const int32_t> prompt,
                                  const DecodeOptions& options, const OnChoice& on_choice) {
  CUTAWAY_SPAN(span, "inference::Decoder::generate", "prompt", prompt, "max_tokens",
               options.max_tokens, "context", options.context);
  CUTAWAY_ASSIGN(Generation answer,
                 Generation::begin(tokenizer_, sequence, prompt, options, runner_.edits()));
  CUTAWAY_TRY(prefill(answer, options));
  while (!answer.ended()) {
    const trace::At at({sequence.run, sequence.seq, static_cast<int32_t>(answer.step()),
                        static_cast<int32_t>(answer.position()), -1});
    CUTAWAY_PHASE(token_span, trace::Phase::kGenerate, "inference::Decoder::token", "step",
                  answer.step());
    if (options.cancelled && options.cancelled()) {
      answer.cancel();
      break;
    }
    if (!answer.has_logits()) CUTAWAY_TRY(append(answer, options));
    CUTAWAY_ASSIGN(const Choice choice, answer.choose());
    CUTAWAY_OUT(token_span, "id", choice.id, "piece", tokenizer_->piece(choice.id), "text",
                choice.text);
    if (on_choice && !on_choice(choice)) answer.cancel();
  }
  Outcome out = answer.finish();
  CUTAWAY_OUT(span, "finish", finish_reason_name(out.finish), "ids", out.ids, "n", out.ids.size(),
              "logits_hash", out.logits_hash.hex());
  return out;
}

Status Decoder::prefill(Generation& answer, const DecodeOptions& options) {
  CUTAWAY_PHASE(span, trace::Phase::kPrefill, "inference::Decoder::prefill", "tokens",
                answer.prompt_tokens(), "cached", answer.cached_tokens(), "chunk",
                options.prefill_chunk);
  while (answer.prefilling()) {
    if (options.cancelled && options.cancelled()) {
      answer.cancel();
      break;
    }
    const StepInput input = answer.next(options.prefill_chunk);
    CUTAWAY_ASSIGN(const ops::Rows rows, runner_.step(std::span(&input, 1)));
    answer.computed(rows);
  }
  CUTAWAY_OUT(span, "length", answer.sequence().length());
  return {};
}

Status Decoder::append(Generation& answer, const DecodeOptions& options) {
  const StepInput input = answer.next(1 + options.draft_tokens);
  CUTAWAY_SPAN(span, "inference::Decoder::append", "id", input.tokens[0], "length",
               answer.sequence().length());
  CUTAWAY_ASSIGN(const ops::Rows rows, runner_.step(std::span(&input, 1)));
  answer.computed(rows);
  CUTAWAY_OUT(span, "logits", rows.view(), "length", answer.sequence().length());
  return {};
}

}  // namespace cutaway::inference
