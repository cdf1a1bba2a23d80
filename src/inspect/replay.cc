#include "inspect/replay.h"

#include <algorithm>

#include "inspect/layer_hashes.h"
#include "trace/trace.h"

namespace cutaway::inspect {
namespace {

// Rows of logits at once: enough that a pass is worth its while, and a few megabytes.
constexpr int64_t kLogitRows = 64;

void compare_hashes(const Recording& recording, const LayerHashes& again, int64_t end,
                    ReplayOutcome& out) {
  const auto& recorded = recording.layer_hashes;
  for (size_t i = 0; i < recorded.size(); ++i) {
    const int64_t position = recording.first_hashed + static_cast<int64_t>(i);
    if (position >= end) return;
    const auto& found = again.hashes()[static_cast<size_t>(position - again.first_position())];
    for (size_t layer = 0; layer < found.size(); ++layer) {
      if (recorded[i][layer] != found[layer]) {
        out.hash_position = position;
        out.hash_layer = static_cast<int64_t>(layer);
        return;
      }
      ++out.hashes;
    }
    ++out.positions;
  }
}

class Replay {
 public:
  Replay(inference::Runner& runner, kv::PagePool& pool, const Recording& recording,
         const sampling::SamplingParams& params, const ReplayOptions& options)
      : runner_(runner),
        recording_(recording),
        options_(options),
        vocab_(runner.model().tokenizer()->vocab_size()),
        sequence_(pool),
        sampler_(params, vocab_) {}

  // Positions [0, begin) without logits, then [begin, end) with.
  Status run(std::span<const int32_t> tokens, int64_t begin, ReplayOutcome& out) {
    sampler_.set_rules(options_.rules);
    sampler_.accept_prompt(recording_.prompt);
    const auto end = static_cast<int64_t>(tokens.size());
    for (int64_t at = 0; at < end;) {
      if (options_.cancelled && options_.cancelled()) {
        return Error{ErrorCode::kCancelled, "the replay was cancelled"};
      }
      const bool choosing = at >= begin;
      const int64_t n =
          choosing ? std::min(kLogitRows, end - at) : std::min(options_.chunk, begin - at);
      const inference::StepInput input{
          &sequence_, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(n)),
          choosing ? inference::WantLogits::kAll : inference::WantLogits::kNone};
      CUTAWAY_ASSIGN(const ops::Rows rows, runner_.step(std::span(&input, 1)));
      for (int64_t i = 0; i < rows.n; ++i) {
        CUTAWAY_TRY(choose({rows.row(i), static_cast<size_t>(rows.d)}, at + i - begin, out));
      }
      at += n;
    }
    return {};
  }

 private:
  Status choose(std::span<const float> logits, int64_t step, ReplayOutcome& out) {
    const RecordedChoice& recorded = recording_.choices[static_cast<size_t>(step)];
    if (out.logits_step < 0 && xxh3_128(logits.data(), logits.size_bytes()) != recorded.logits) {
      out.logits_step = step;
    }
    const bool shown = options_.step == step;
    sampling::Ledger ledger;
    const auto position = static_cast<int64_t>(recording_.prompt.size()) + step;
    CUTAWAY_ASSIGN(const int32_t id, sampler_.choose(logits.first(static_cast<size_t>(vocab_)),
                                                     position, step, shown ? &ledger : nullptr));
    if (shown) out.ledger = sampling::to_json(ledger);
    if (out.choice_step < 0 && id != recorded.id) {
      out.choice_step = step;
      out.chosen_instead = id;
    }
    if (out.choice_step < 0) ++out.choices;
    sampler_.accept(recorded.id);  // what follows is compared on the recorded path
    return {};
  }

  inference::Runner& runner_;
  const Recording& recording_;
  const ReplayOptions& options_;
  const int32_t vocab_;
  inference::SequenceState sequence_;
  sampling::Sampler sampler_;
};

}  // namespace

Result<ReplayOutcome> replay(inference::Runner& runner, kv::PagePool& pool,
                             const Recording& recording, const sampling::SamplingParams& params,
                             const ReplayOptions& options) {
  CUTAWAY_SPAN(span, "inspect::replay", "prompt", recording.prompt, "choices",
               recording.choices.size(), "step", options.step.value_or(-1));
  const auto choices = static_cast<int64_t>(recording.choices.size());
  if (options.step && (*options.step < 0 || *options.step >= choices)) {
    return Error{ErrorCode::kInvalidArgument,
                 "step is " + std::to_string(*options.step) + "; the run has " +
                     (choices == 0 ? "no choices" : "steps 0 to " + std::to_string(choices - 1)),
                 "step"};
  }
  std::vector<int32_t> tokens = recording.computed_tokens();
  const auto prompt = static_cast<int64_t>(recording.prompt.size());
  if (options.step) tokens.resize(static_cast<size_t>(prompt + *options.step));
  LayerHashes hashes(recording.n_layers);
  runner.set_probes({&hashes});
  ReplayOutcome out;
  // The logits of the prompt's last token are what the first choice was made from.
  const int64_t begin = choices > 0 ? prompt - 1 : static_cast<int64_t>(tokens.size());
  const Status status = Replay(runner, pool, recording, params, options).run(tokens, begin, out);
  runner.set_probes({});
  CUTAWAY_TRY(status);
  compare_hashes(recording, hashes, static_cast<int64_t>(tokens.size()), out);
  CUTAWAY_OUT(span, "equal", out.equal(), "hashes", out.hashes, "choices", out.choices);
  return out;
}

}  // namespace cutaway::inspect
