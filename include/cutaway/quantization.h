// Model files in other tensor types, and the importance matrices that make small ones better: what
// `cutaway quantize` and `cutaway imatrix` do. docs/quantize.md says which tensor gets which type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "cutaway/model.h"
#include "cutaway/options.h"

namespace cutaway {

// A type that a file can be quantised to: "Q4_K_M", and a line on it.
struct QuantizationType {
  std::string name, about;
};
std::vector<QuantizationType> quantization_types();

struct QuantizationRequest {
  std::string input;       // a path or an installed name
  std::string output;      // path of the .gguf file; may be empty for a dry run
  std::string type;        // one of quantization_types(), in any case
  std::string importance;  // path of an importance matrix (llama.cpp's GGUF or .dat); empty: none
  // Tensors whose name holds the regular expression get the tensor type; the first that fits
  // counts.
  std::vector<std::pair<std::string, std::string>> tensor_types;
  bool pure = false;              // every matrix has the type: no mix
  bool allow_requantize = false;  // from one quantised type to another
  bool dry_run = false;           // plan only: nothing is read but the head, nothing is written
  bool overwrite = false;  // a file that is there already is replaced, once the new one is whole
  int threads = 0;         // 0: what the machine can really use; 1 … 1024
};

// Writes the file, tensor by tensor: memory stays at some ten megabytes. The bytes depend on the
// input, the importance and the request alone: not on the threads, not on the machine. Until it is
// whole it has another name in the same folder, and an error leaves none. Returns
// {"file" (null for a dry run),"type","input","input_bytes","bytes","bits_per_weight","importance"
// (null without one; {"file","tensors","chunks"}),"tensors":[{"name","shape","from","to",
// "from_bytes","to_bytes","importance","fell_back"}],"timings":{"total_ms"},"warnings"}
// where bytes are those of the whole file. Errors: kInvalidArgument (unknown types, patterns that
// fit nothing, importance of another model, a quantised input without allow_requantize),
// kInvalidFile (the input's, or a weight that is not finite or too large for its type), kIo (the
// output exists; not enough room), kCancelled (`progress`, which may be empty, returned false).
Result<Json> quantize(const QuantizationRequest& request, const ProgressFn& progress);

struct ImportanceRequest {
  // Exactly one of these two, cut into windows of options.context tokens (0: 512):
  std::optional<std::string> text;             // raw
  std::optional<std::vector<int32_t>> tokens;  // ids
  int64_t max_tokens = 0;                      // of the text; 0: all
  std::string dataset;                         // a name of the text, kept in the file
  std::string output;                          // path of the .gguf file
  bool overwrite = false;
  ProgressFn progress;  // tokens done, of all; false ends it: kCancelled
};

// Runs a text through a model and writes how much each input column of each layer's matrices
// counts: the mean square of the activations that it met. What does not fill a window at the end is
// left out. Returns {"file","model","tensors","windows","window","tokens","left_out","timings":{
// "total_ms","tokens_per_second"},"warnings"}. Errors: kInvalidArgument (field named), kTooLarge,
// kIo, kCancelled.
Result<Json> measure_importance(const Model& model, const ImportanceRequest& request,
                                const SessionOptions& options);

}  // namespace cutaway
