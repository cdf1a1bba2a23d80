// A recording: a folder of standard files from which any tensor of any step of a run can be
// computed again, and proved to be the same.
//
//   run.json            the model, the settings, the prompt's ids, the answer; sizes and hashes of
//                       the other files, and last a hash of its own bytes before that
//   events.jsonl        one JSON object a line: {"kind":"hashes",…} for each position that was
//                       computed, {"kind":"sample",…} for each choice
//   trace.jsonl         the run's own trace (schema/trace.schema.json); may be absent
//   tensors.safetensors the taps that were asked for; may be absent
//   interventions.json  what the run changed inside itself; absent when nothing was changed
//   interventions.safetensors  the values that its patches put in; may be absent
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/json.h"
#include "base/result.h"

namespace cutaway::inspect {

struct RecordedChoice {
  int32_t id = 0;
  std::string piece;  // for people
  Hash128 logits;     // XXH3-128 of the raw f32 logits that it was chosen from
  Json ledger;        // schema/ledger.schema.json
  double ms = 0;      // since the run began; 0 in recordings that do not say it
};

struct Recording {
  // At least "run", "created", "text", "finish_reason", "model": {"name","path","packed_xxh3",…},
  // "session": {"kernels","cache_type",…} and "sampling". Read back: run.json without "format",
  // "version", "layers", "prompt_tokens", "tokens", "files" and "xxh3".
  Json run = Json::object();
  int64_t n_layers = 0;
  std::vector<int32_t> prompt;
  std::vector<RecordedChoice> choices;
  int64_t first_hashed = 0;  // positions before it were in the cache when the run began
  std::vector<std::vector<uint64_t>> layer_hashes;  // [position − first_hashed][layer]
  std::optional<Json> interventions;  // schema/interventions.schema.json, paths below the folder
  bool has_tensors = false;           // read back: tensors.safetensors is there
  bool has_trace = false;             // read back: trace.jsonl is there

  // Every token whose keys and values the run computed: the prompt, and all choices but the last.
  std::vector<int32_t> computed_tokens() const;
};

// A folder that is made under another name beside `directory` and appears whole or not at all.
class RecordingWriter {
 public:
  // Errors: kInvalidArgument when something is at `directory` already (unless it is an empty
  // folder), kIo. Nothing is left behind when the writer ends without commit().
  static Result<RecordingWriter> create(const std::string& directory);
  ~RecordingWriter();
  RecordingWriter(RecordingWriter&& other) noexcept;
  RecordingWriter& operator=(RecordingWriter&&) = delete;

  // Where tensors.safetensors belongs, for whoever writes it, before commit().
  std::string tensors_path() const;
  // And trace.jsonl.
  std::string trace_path() const;
  // And interventions.safetensors.
  std::string patches_path() const;
  // Error kIo; where something came to `directory` meanwhile, it says under which name the
  // recording stays.
  Status commit(const Recording& recording);

 private:
  RecordingWriter() = default;
  std::string directory_, temporary_;
};

inline std::string recorded_tensors_path(const std::string& directory) {
  return directory + "/tensors.safetensors";
}

// Lines of a recording's trace.jsonl: the first `most`, each checked to have what a view reads.
// Precondition: read_recording found it. Errors: kInvalidFile (the line, and what is wrong), kIo.
struct RecordedTrace {
  Json lines = Json::array();
  int64_t count = 0;  // of the file
};
Result<RecordedTrace> read_trace(const std::string& directory, int64_t most);

// Reads and checks everything: hashes of the files, counts that must fit one another. Errors:
// kNotFound, kInvalidFile (the file, and what is wrong with it), kUnsupported (a later version).
Result<Recording> read_recording(const std::string& directory);

}  // namespace cutaway::inspect
