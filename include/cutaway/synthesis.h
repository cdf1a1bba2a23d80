// GGUF files with random weights at the shape of a real model: how fast would it run here, without
// downloading it. Cutaway and llama.cpp load them; what they write means nothing.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cutaway/options.h"

namespace cutaway {

// A shape that can be made. Sizes as the makers of the real model published them.
struct SynthesisShape {
  std::string name;  // "llama-3.1-8b"
  std::string architecture;
  uint64_t parameters = 0;
  int64_t layers = 0, d_model = 0, n_heads = 0, n_kv_heads = 0, d_head = 0, d_mlp = 0, vocab = 0;
  int64_t context = 0;  // tokens
  bool tied = false;    // the head is the embedding
  // Of the weights, by the type of the matrices; a file has a vocabulary (up to 5 MB) besides.
  std::vector<std::pair<std::string, uint64_t>> bytes;
};
std::vector<SynthesisShape> synthesis_shapes();
// The types that matrices can have ("F32", "Q4_1", …). Vectors (norms, biases) are always F32.
std::vector<std::string> synthesis_types();

struct SynthesisRequest {
  std::string shape;   // a name of synthesis_shapes()
  std::string type;    // one of synthesis_types(), in any case
  std::string output;  // path of the .gguf file
  int64_t layers = 0;  // fewer layers than the shape has; 0: all of them
  uint64_t seed = 0;
  int threads = 0;         // 0: what the machine can really use; 1 … 1024
  bool overwrite = false;  // a file that is there already is replaced, once the new one is whole
};

struct SynthesisResult {
  std::string file, shape, architecture, type;
  int64_t layers = 0;
  uint64_t parameters = 0, tensors = 0, bytes = 0, seed = 0;
  double write_ms = 0;
};

// Writes the file, tensor by tensor: memory stays at some ten megabytes. Its bytes depend on shape,
// type, layers and seed alone: not on the threads, not on the machine. Until it is whole it has
// another name (OUTPUT.….part) in the same folder, and an error leaves none. Errors:
// kInvalidArgument (unknown shape or type: names those that exist; layers, threads, output),
// kIo (the output exists and `overwrite` is false, or is no regular file; not enough room: needed
// and free bytes; the system's own), kCancelled (`progress`, which may be empty, returned false).
Result<SynthesisResult> synthesize(const SynthesisRequest& request, const ProgressFn& progress);

}  // namespace cutaway
