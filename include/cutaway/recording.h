// Recordings: what a run leaves behind so that any of its tensors can be computed again, and proved
// to be the same. A folder: run.json, events.jsonl, and tensors.safetensors where taps were asked
// for (docs/recordings.md).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "cutaway/model.h"

namespace cutaway {

// What a recording says about itself, without a model: its run.json, checked with every other file
// of the folder, and in "tokens" what its events say of each choice:
// {"id","piece","ms","logits_xxh3","ledger"}. Errors: kNotFound, kInvalidFile (the file, and what
// is wrong with it), kUnsupported.
Result<Json> read_recording(const std::string& directory);

struct ReplayRequest {
  std::string directory;
  std::optional<int64_t> step;    // of the answer, from 0: as far as this choice, and its ledger
  std::vector<std::string> taps;  // computed again, of the positions up to there
  TapWindow window;               // of them; `steps` are those of the recording
  int64_t attention_top = 0;      // as in RecordOptions
  std::string output;             // path of their .safetensors file
  // Asked between passes; true ends the replay with kCancelled. May be empty.
  std::function<bool()> cancelled;
};

// Computes a recorded run again with `model` and the recording's settings, and compares the hash of
// every layer at every position, the hash of the logits of every choice, and every choice:
// {"recording","run","model","kernels":{"recorded","here"},"equal","compared":{"positions","hashes",
// "choices"},"difference":null|{"layer":{"position","layer"},"logits":{"step"},"choice":{"step",
// "recorded","here"},"why"},"step" (with `step`: {"step","id","piece","ledger"}),"taps" and "file"
// (with `taps`), "warnings","timings":{"replay_ms"}}.
// A difference is a result. Errors: those of read_recording; kInvalidArgument (another model: both
// hashes; a step or a tap that is not there), kTooLarge, kCancelled, kIo.
Result<Json> replay(const Model& model, const ReplayRequest& request);

}  // namespace cutaway
