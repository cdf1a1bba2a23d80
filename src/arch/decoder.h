// The weights of a pre-norm decoder (RMS norm, grouped-query attention, gated MLP), and how they
// are read through an architecture's tensor table.
#pragma once

#include <vector>

#include "arch/architecture.h"
#include "arch/config.h"

namespace cutaway::arch {

struct LinearRows {
  TensorRow weight;
  TensorRow bias;  // an empty name: the architecture has none
};

// The same for `rows` rows, from `first` on, of tensors of `of` rows.
LinearRows part_of(const LinearRows& rows, int64_t first, int64_t of);

// `heads` serves Transform::kRopePairs.
Result<ops::Linear> load_linear(const LinearRows& rows, WeightSource& source, int64_t layer,
                                int64_t out, int64_t in, int64_t heads = 0);

// An architecture's tensor table, and what of the configuration differs from Llama's. Rows of q, k
// and v (or gate and up) that name one tensor share it, in this order.
struct DecoderRows {
  TensorRow embedding, final_norm, head, rope_divisors;  // the last two are optional
  TensorRow attention_norm;                              // an empty name: the architecture has none
  LinearRows q, k, v, o;
  TensorRow mlp_norm;  // likewise
  LinearRows gate, up, down;
  // Empty names: the architecture has none.
  TensorRow q_norm = {}, k_norm = {};
  bool norms_whole_rows = false;  // q_norm and k_norm: all heads together, not each by itself
  TensorRow post_attention_norm = {}, post_mlp_norm = {};
  bool reads_window = false;  // else a file with a sliding window is refused
  ops::Activation activation = ops::Activation::kSilu;
  RopeKeys rope = {};
  TensorRow long_rope_divisors = {};  // optional
};

// The table of a mixture's experts, in the place of gate, up and down.
struct MoeRows {
  TensorRow router;
  ExpertRow gate, up, down;
  bool normalize;  // of the chosen experts' weights, where the file does not say
  // An expert that every token passes; empty names: the architecture has none.
  TensorRow shared_weight = {};  // {d_model}
  TensorRow shared_gate = {}, shared_up = {}, shared_down = {};
};

struct DecoderLayer {
  ops::Vector attention_norm;
  ops::AttentionWeights attention;
  ops::Vector mlp_norm;
  ops::Vector post_attention_norm, post_mlp_norm;
  ops::GatedMlpWeights mlp;  // or
  ops::MoeWeights moe;
};

// Everything that a pre-norm decoder's forward reads.
struct Decoder {
  ModelShape shape;
  float eps = 0;  // of the RMS norms
  ops::Matrix embedding;
  std::vector<DecoderLayer> layers;
  ops::Vector final_norm;
  ops::Linear head;  // the embedding again, when the file ties them
  ops::Rope rope;
  ops::AttentionShape attention;
};

// Reads the configuration, then the weights that its table names. An architecture whose settings or
// tensors differ adds what it needs before or after. `experts`: each layer's MLP is a mixture.
Result<Decoder> load_decoder(const DecoderRows& rows, const Metadata& metadata,
                             WeightSource& source, const MoeRows* experts = nullptr);

// The matrices of its layers, and its head.
Products decoder_products(const Decoder& model);

}  // namespace cutaway::arch
