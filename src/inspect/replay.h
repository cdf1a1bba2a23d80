// Computes a recorded run again, and compares every hash and every choice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "inference/runner.h"
#include "inspect/recording.h"
#include "sampling/sampler.h"

namespace cutaway::inspect {

struct ReplayOptions {
  std::optional<int64_t> step;  // go as far as this choice; none: to the end
  int64_t chunk = 512;
  std::function<bool()> cancelled;  // asked between passes; may be empty
  sampling::TokenRules rules;  // of the recording's interventions; its editors are the runner's
};

struct ReplayOutcome {
  // Compared, and equal up to the first difference.
  int64_t hashes = 0, positions = 0, choices = 0;
  // Where the first difference of each kind is; −1: there is none.
  int64_t hash_position = -1, hash_layer = -1;  // by position, then layer
  int64_t logits_step = -1;
  int64_t choice_step = -1;
  int32_t chosen_instead = -1;
  Json ledger;  // of options.step, computed again

  bool equal() const { return hash_position < 0 && logits_step < 0 && choice_step < 0; }
};

// `params` are those of the recording. Errors: kInvalidArgument (a step that the run does not
// have), kCancelled, and those of Runner::step.
Result<ReplayOutcome> replay(inference::Runner& runner, kv::PagePool& pool,
                             const Recording& recording, const sampling::SamplingParams& params,
                             const ReplayOptions& options);

}  // namespace cutaway::inspect
