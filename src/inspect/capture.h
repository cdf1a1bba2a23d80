// Any tap of a text, written to a .safetensors file as it is computed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "inference/runner.h"

namespace cutaway::inspect {

struct CapturedTap {
  std::string name;            // as TransformerLens names it
  std::vector<int64_t> shape;  // leading dimension: one sequence
};

struct CaptureOutcome {
  std::vector<CapturedTap> taps;
  int64_t forward_ns = 0;  // the pass itself, writing apart
  int64_t write_ns = 0;
};

// Error kInvalidArgument or kUnsupported when one of the taps is not there, or there is none.
Status check_taps(const std::vector<std::string>& taps, const arch::ModelShape& shape);

// Runs `tokens` through the runner in chunks of `chunk` and writes the named taps to `path`.
// Errors: kInvalidArgument (an unknown tap, one named twice, no tokens), kUnsupported (a tap that
// this version does not fire), kTooLarge, kIo. The file appears whole or not at all. `others` watch
// the same passes.
Result<CaptureOutcome> capture(inference::Runner& runner, kv::PagePool& pool,
                               std::span<const int32_t> tokens,
                               const std::vector<std::string>& taps, int64_t chunk,
                               const std::string& path,
                               const std::vector<trace::Probe*>& others = {});

}  // namespace cutaway::inspect
