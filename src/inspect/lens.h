// The logit lens: what the residual stream after each layer would have said, had the model ended
// there. (nostalgebraist, "interpreting GPT: the logit lens", 2020.)
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "inference/runner.h"

namespace cutaway::inspect {

struct LensPlan {
  std::span<const int32_t> tokens;
  // Ascending; −1 is the stream that enters layer 0 (the embedding), l what layer l leaves.
  std::vector<int> layers;
  int64_t first = 0;    // positions before it are context only
  int32_t top = 5;      // tokens per cell, ≥ 0
  int32_t vocab = 0;    // the tokenizer's ids: the head's rows past them are no tokens
  int64_t chunk = 512;  // tokens per forward pass of what is context only
  // Where the runner has editors: others of the same interventions, for the final norm and the
  // logits of the layers before the last.
  std::vector<trace::Editor*> editors;
  std::function<bool()> cancelled;  // asked between passes; may be empty
};

struct LensToken {
  int32_t id = -1;
  float logit = 0;
  float probability = 0;
};

// Where one token stands: 0 is the most probable (by logit, then id).
struct LensStanding {
  int32_t rank = -1;
  float probability = 0;
};

// One layer at one position.
struct LensCell {
  std::vector<LensToken> top;  // by logit, then id
  float entropy = 0;           // nats
  float kl = 0;       // nats, of this layer's distribution from the last one's: KL(last ‖ this)
  LensStanding next;  // of the token that came next; rank −1 at the end of the text
  LensStanding last;  // of the last layer's first choice
};

struct LensOutcome {
  std::vector<LensCell> cells;   // [layer of the plan][position − first]
  std::vector<int32_t> choices;  // the last layer's first choice, [position − first]
  int64_t positions = 0;
  int64_t forward_ns = 0, unembed_ns = 0, score_ns = 0;

  const LensCell& at(int64_t layer_index, int64_t position) const {
    return cells[static_cast<size_t>(layer_index * positions + position)];
  }
};

// Preconditions: layers within −1 … n_layers − 1, 0 ≤ first < tokens.size(), vocab ≤ the head's.
// Memory beside the outcome: the streams of some tens of positions, and logits of some tens of
// rows, however long the text. The last layer's cells are the logits of the forward pass itself.
// Errors: those of Runner::step, kCancelled, kInvalidFile (logits that are not finite: layer and
// position).
Result<LensOutcome> lens(inference::Runner& runner, kv::PagePool& pages, ThreadPool& pool,
                         const LensPlan& plan);

}  // namespace cutaway::inspect
