// What an architecture is: a config read from neutral metadata, a table of its tensors, a forward
// pass. One file each; registry.cc lists them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ops/blocks.h"
#include "tensor/model_file.h"

namespace cutaway::arch {

// Dimensions that the rest of the engine needs.
struct ModelShape {
  int64_t n_layers = 0, d_model = 0, n_heads = 0, n_kv_heads = 0, d_head = 0;
  int64_t d_mlp = 0;                          // of one expert, in a mixture
  int64_t n_experts = 0, n_experts_used = 0;  // of a layer, and of them per token; 0: no mixture
  int64_t vocab = 0;                          // rows of the head; ids of the tokenizer may be fewer
  int64_t context_length = 0;                 // positions that the model was trained for
  bool gated_mlp = true;                      // else there is no hook_pre_linear
  bool learned_positions = false;             // hook_pos_embed; positions end at context_length
};

// What converters change between formats; undone while the weight is packed.
enum class Transform : uint8_t {
  kNone,
  // GGUF's llama files hold q and k rows of a head pair by pair (row 2j + s holds what Hugging Face
  // has at row s·d/2 + j); `heads` says how many heads there are.
  kRopePairs,
  // A norm multiplies with 1 + w. Hugging Face's files hold w, GGUF's 1 + w, which is what is
  // taken.
  kNormPlusOne,
  // Hugging Face's files hold {inputs, outputs}, GGUF's {outputs, inputs}, as matrix() is asked
  // for.
  kTransposed,
};

// One row of an architecture's tensor table. Names may hold {l}, the layer.
struct TensorRow {
  std::string_view gguf;
  std::string_view hugging_face;
  Transform transform = Transform::kNone;  // of the GGUF form
  bool optional = false;
  // of > 0: the rows from `first` on of a tensor of `of` rows, which several share.
  int64_t first = 0, of = 0;
  bool stays_f32 = false;  // quantisers leave it as it is: a router, whose choices are discrete
};

// One weight of all experts of a layer. Files hold it in one of three forms: stacked, {n_experts,
// rows, cols}; stacked with another weight whose rows follow its own, expert by expert; or one
// tensor an expert, whose names hold {e}.
struct ExpertRow {
  std::string_view gguf, hugging_face;              // stacked
  std::string_view gguf_each, hugging_face_each;    // one an expert
  std::string_view gguf_fused, hugging_face_fused;  // {n_experts, 2 · rows, cols}; empty: none
  int fused_half = 0;                               // which of the two it is
};

// Gives an architecture its weights: checks name, shape and type, and packs. Every tensor of the
// file must be asked for by someone, else the file is refused (nothing is silently dropped).
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Absent optional tensors give an absent Matrix or Vector. Errors: kNotFound and kInvalidFile
  // name the tensor, the shape found and the one expected. `heads` serves Transform::kRopePairs.
  virtual Result<ops::Matrix> matrix(const TensorRow& row, int64_t layer, int64_t rows,
                                     int64_t cols, int64_t heads) = 0;
  virtual Result<ops::Vector> vector(const TensorRow& row, int64_t layer, int64_t n,
                                     int64_t heads) = 0;
  // A weight of {rows, cols} for each of n ≥ 1 experts, in whichever form the file has it. Errors
  // as those of matrix(); tensors of several experts must have one type.
  virtual Result<ops::ExpertMatrices> experts(const ExpertRow& row, int64_t layer, int64_t n,
                                              int64_t rows, int64_t cols) = 0;
  // Rows of a rank-2 tensor that must be there: how a vocabulary's size is found.
  virtual Result<int64_t> rows_of(const TensorRow& row) = 0;
};

// The matrices that a forward pass multiplies with, attention apart: what a token costs.
struct Products {
  // One weight of a layer's experts: `n` matrices like `each`, of which a token meets `used`.
  struct Experts {
    kernels::PackedMatrix each;
    int64_t n = 0, used = 0;
  };
  std::vector<kernels::PackedMatrix> layers;  // with every position
  kernels::PackedMatrix head;                 // with the positions whose logits are wanted
  std::vector<Experts> experts;               // with the positions that the router sends there
};

class Transformer {
 public:
  virtual ~Transformer() = default;
  virtual const ModelShape& shape() const = 0;
  virtual Products products() const = 0;
  // One pass over pass.batch: keys and values are written, logits {batch.logit_rows, vocab}
  // returned (in scratch memory).
  virtual ops::Rows forward(ops::Pass& pass) const = 0;
  // What the residual stream x {rows, d_model} says when it is read as the last layer's: logits
  // {batch.logit_rows, vocab}, by the final norm, the head and what becomes of its products. The
  // end of forward(), and what reads the stream after any other layer (a logit lens).
  virtual ops::Rows unembed(ops::Pass& pass, const ops::Rows& x) const = 0;
};

// The shape of a model as its makers published it.
struct PublishedShape {
  std::string name;                   // "llama-3.1-8b"
  Metadata metadata;                  // what a GGUF file of it says, the tokenizer apart
  int64_t vocab = 0;                  // rows of the embedding
  std::vector<std::string> optional;  // the optional tensors that it has, by their GGUF names
  // Optional tensors that are computed, not learned, and their values: no parameters.
  std::map<std::string, std::vector<float>> constants;
};

struct Architecture {
  const char* name;  // general.architecture
  // Errors name the metadata key or tensor.
  Result<std::unique_ptr<Transformer>> (*load)(const Metadata& metadata, WeightSource& weights);
  // Metadata of tiny models that between them use every option; for tests.
  std::vector<Metadata> (*tiny_configs)();
  // Real models of this architecture, smallest first within a family.
  std::vector<PublishedShape> (*published_shapes)();
  // True for files that say another architecture's name and are this one's; null: there are none.
  bool (*claims)(const Metadata& metadata) = nullptr;
};

std::span<const Architecture> architectures();
// Error kUnsupported names the value and the architectures that exist.
Result<const Architecture*> find_architecture(std::string_view name);
// The one that a file is for. Errors: also kNotFound without general.architecture.
Result<const Architecture*> find_architecture(const Metadata& metadata);

}  // namespace cutaway::arch
