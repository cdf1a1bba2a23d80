// How much each input column of a model's matrices counts, measured on a text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "formats/imatrix.h"
#include "inference/runner.h"

namespace cutaway::inspect {

struct ImportancePlan {
  std::span<const int32_t> tokens;  // what does not fill a window at the end is left out
  int64_t window = 512;             // ≥ 1; each is computed from an empty context
  int32_t bos = -1;                 // ≥ 0: takes the place of every window's first token
  int64_t chunk = 512;              // tokens per forward pass

  int64_t windows() const { return static_cast<int64_t>(tokens.size()) / window; }
};

// The mean squares of what the matrices of the layers read (the head is not among them). The runner
// is precise; `pages` has room for a window. `progress(done, total)` counts tokens and may be
// empty; false ends it with kCancelled. Other errors: those of Runner::step, and kInvalidFile when
// an activation is not finite.
Result<formats::ImportanceMatrix> measure_importance(
    inference::Runner& runner, kv::PagePool& pages, const ImportancePlan& plan,
    const std::function<bool(int64_t, int64_t)>& progress);

}  // namespace cutaway::inspect
