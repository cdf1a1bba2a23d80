#include "inference/runner.h"

#include <numeric>

#include "trace/trace.h"

namespace cutaway::inference {

void SequenceState::truncate(int64_t n) {
  CUTAWAY_SPAN(span, "inference::SequenceState::truncate", "from", length(), "to", n);
  if (n < length()) tokens.resize(static_cast<size_t>(n));
  kv.truncate(n);
  if (n == 0) edited = false;
}

Runner::Runner(const model::LoadedModel& model, const kernels::KernelTable& table, ThreadPool& pool,
               bool precise)
    : model_(model),
      table_(table),
      pool_(pool),
      precise_(precise),
      context_(model.shape().context_length) {}

Result<ops::Rows> Runner::step(std::span<const StepInput> inputs) {
  CUTAWAY_SPAN(span, "inference::Runner::step", "sequences", inputs.size(), "tokens",
               inputs.empty() ? std::span<const int32_t>() : inputs[0].tokens);
  const int64_t vocab = model_.shape().vocab;
  batch_.tokens.clear();
  batch_.slices.clear();
  batch_.logit_rows.clear();
  for (const StepInput& input : inputs) {
    const auto n = static_cast<int64_t>(input.tokens.size());
    for (const int32_t token : input.tokens) {
      if (token < 0 || token >= vocab) {
        return Error{ErrorCode::kInvalidArgument,
                     "token id " + std::to_string(token) + " is outside the vocabulary (0 to " +
                         std::to_string(vocab - 1) + ")",
                     "tokens"};
      }
    }
    SequenceState& sequence = *input.sequence;
    const arch::ModelShape& shape = model_.shape();
    if (shape.learned_positions && sequence.length() + n > shape.context_length) {
      return Error{ErrorCode::kTooLarge,
                   "a sequence of " + std::to_string(sequence.length() + n) +
                       " tokens; this model has embeddings for " +
                       std::to_string(shape.context_length) + " positions",
                   "tokens"};
    }
    CUTAWAY_TRY(sequence.kv.reserve(sequence.length() + n));
    const auto first_row = static_cast<int64_t>(batch_.tokens.size());
    batch_.slices.push_back(
        {&sequence.kv, sequence.length(), first_row, n, sequence.run, sequence.seq, context_});
    batch_.tokens.insert(batch_.tokens.end(), input.tokens.begin(), input.tokens.end());
    if (input.logits == WantLogits::kLast) batch_.logit_rows.push_back(first_row + n - 1);
    for (int64_t i = 0; input.logits == WantLogits::kAll && i < n; ++i) {
      batch_.logit_rows.push_back(first_row + i);
    }
  }
  scratch_.rewind({});
  ops::Pass pass{table_, pool_, scratch_, batch_, precise_, probes_, watcher_, editors_};
  const ops::Rows logits = model_.transformer().forward(pass);
  for (const StepInput& input : inputs) {
    SequenceState& sequence = *input.sequence;
    sequence.tokens.insert(sequence.tokens.end(), input.tokens.begin(), input.tokens.end());
    sequence.kv.set_length(sequence.length());
    sequence.edited = sequence.edited || edits();
  }
  CUTAWAY_OUT(span, "logits", logits.view());
  return logits;
}

ops::Rows Runner::unembed(const ops::Rows& x, std::span<const int64_t> positions,
                          std::span<trace::Editor* const> editors) {
  CUTAWAY_SPAN(span, "inference::Runner::unembed", "x", x.view(), "editors", editors.size());
  CUTAWAY_CHECK(editors.empty() || std::ssize(positions) == x.n);
  batch_.tokens.assign(static_cast<size_t>(x.n), 0);
  batch_.slices.clear();
  // Rows of consecutive positions are one slice: where editors find their positions.
  for (int64_t row = 0; row < x.n && !editors.empty(); ++row) {
    const int64_t position = positions[static_cast<size_t>(row)];
    if (row == 0 || position != positions[static_cast<size_t>(row) - 1] + 1) {
      batch_.slices.push_back({nullptr, position, row, 0, -1, 0, context_});
    }
    ++batch_.slices.back().n;
  }
  batch_.logit_rows.resize(static_cast<size_t>(x.n));
  std::iota(batch_.logit_rows.begin(), batch_.logit_rows.end(), 0);
  scratch_.rewind({});
  ops::Pass pass{table_, pool_, scratch_, batch_, precise_, {}, nullptr, editors};
  const ops::Rows logits = model_.transformer().unembed(pass, x);
  CUTAWAY_OUT(span, "logits", logits.view());
  return logits;
}

}  // namespace cutaway::inference
