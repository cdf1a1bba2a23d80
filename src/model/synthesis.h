// Files with random weights at a published model's shape: what is in them, and writing them. An
// architecture's own loader says which tensors there are, so a new one needs no line here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "arch/architecture.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "formats/gguf.h"

namespace cutaway::model {

struct SynthesisTensor {
  enum class Kind : uint8_t {
    kMatrix,    // of the type that was asked for, ~N(0, 1/√columns): activations stay of order 1
    kRouter,    // F32, as random as a matrix
    kGain,      // of a norm: F32, ~N(1, 0.1)
    kBias,      // F32, ~N(0, 0.1)
    kConstant,  // F32, computed
  };
  std::string name;
  Kind kind;
  Shape shape;
  std::vector<float> values;  // kConstant
};

struct Synthesis {
  std::string architecture;
  Metadata metadata;  // the architecture's part of it
  arch::ModelShape shape;
  bool tied = false;        // the head is the embedding
  uint64_t parameters = 0;  // constants apart: the count that makers publish
  std::vector<SynthesisTensor> tensors;

  // Of all tensors, with the matrices in `type` (or what fits their rows: formats::fitting_type).
  uint64_t tensor_bytes(DType type) const;
};

// `layers`: how many of the shape's own; 0: all. Error kInvalidArgument: fewer than 1, or more than
// the shape has.
Result<Synthesis> plan_synthesis(const arch::Architecture& architecture,
                                 const arch::PublishedShape& shape, int64_t layers);

// The key–value part of a file: the architecture's keys, a name that says that the weights are
// random, and a byte-level vocabulary of the right size: 256 bytes, one merge, `<|begin|>` and
// `<|end|>`, and made-up tokens `<|pad_7|>`.
void add_synthesis_metadata(const Synthesis& synthesis, const std::string& name, DType type,
                            formats::GgufWriter& writer);

// Adds every tensor, produced while the file is written, by the pool's threads. `report` (may be
// empty) gets the bytes written so far of all tensors; false ends it with kCancelled. `synthesis`
// and `pool` must live until the writer has written. Precondition: formats::is_row_type(type).
using ReportBytes = std::function<bool(uint64_t done, uint64_t total)>;
void add_synthesis_tensors(const Synthesis& synthesis, DType type, uint64_t seed, ThreadPool& pool,
                           const ReportBytes& report, formats::GgufWriter& writer);

}  // namespace cutaway::model
