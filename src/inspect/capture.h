// Any tap of a text, or of some of its positions, heads and layers: into a .safetensors file, or
// into memory. Every value is written once, to its place: maps by the kernels themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/large_memory.h"
#include "inference/runner.h"
#include "trace/tap_selection.h"

namespace cutaway::inspect {

struct CapturedTap {
  std::string name;            // as TransformerLens names it
  std::vector<int64_t> shape;  // leading dimension: one sequence
  const char* dtype = "F32";
  const void* data = nullptr;  // of a capture in memory
};

struct CaptureOutcome {
  std::vector<CapturedTap> taps;
  int64_t forward_ns = 0;  // the pass, with the taps
  int64_t write_ns = 0;    // what the file took beside it
};

// The selection that `query` means for a model. Errors: those of trace::parse_taps.
Result<trace::TapSelection> select_taps(const trace::TapQuery& query,
                                        const arch::ModelShape& shape);

struct CaptureJob {
  trace::TapSelection selection;
  trace::TapRange range;  // positions; those after it are not computed
  int64_t top = 0;        // keys of each row in the standing form of attention; 0: without it
  int64_t chunk = 512;    // tokens a pass
  std::function<bool()> cancelled = {};  // asked between passes; may be empty
};

// Runs `tokens` through the runner and writes the taps to `path`. Errors: kInvalidArgument (no
// tokens, no taps), kTooLarge, kIo, kCancelled. The file appears whole or not at all. `others`
// watch the same passes.
Result<CaptureOutcome> capture(inference::Runner& runner, kv::PagePool& pool,
                               std::span<const int32_t> tokens, const CaptureJob& job,
                               const std::string& path,
                               const std::vector<trace::Probe*>& others = {});

// The same into memory, which holds the values for as long as it lives.
struct MemoryCapture {
  CaptureOutcome outcome;
  LargeArena memory{size_t{1} << 21};
  float* data = nullptr;  // the arena's only part
  int64_t floats = 0;     // its size, at least that of the taps
};
// `previous`, whose values nobody needs any more: its memory is used again where it is large enough
// and not more than twice what is needed. Memory that the system has yet to give costs more than
// the values that are written there.
Result<MemoryCapture> capture_in_memory(inference::Runner& runner, kv::PagePool& pool,
                                        std::span<const int32_t> tokens, const CaptureJob& job,
                                        const std::vector<trace::Probe*>& others = {},
                                        MemoryCapture previous = {});

}  // namespace cutaway::inspect
