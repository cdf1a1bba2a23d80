// The weights of a pre-norm decoder (RMS norm, grouped-query attention, gated MLP), and how they
// are read through an architecture's tensor table.
#pragma once

#include <vector>

#include "arch/architecture.h"

namespace cutaway::arch {

struct LinearRows {
  TensorRow weight;
  TensorRow bias;  // an empty name: the architecture has none
};

// An architecture's tensor table.
struct DecoderRows {
  TensorRow embedding, final_norm, head, rope_divisors;  // the last two are optional
  TensorRow attention_norm;
  LinearRows q, k, v, o;
  TensorRow mlp_norm;
  LinearRows gate, up, down;
};

struct DecoderLayer {
  ops::Vector attention_norm;
  ops::AttentionWeights attention;
  ops::Vector mlp_norm;
  ops::GatedMlpWeights mlp;
};

struct DecoderWeights {
  ops::Matrix embedding;
  std::vector<DecoderLayer> layers;
  ops::Vector final_norm;
  ops::Linear head;                  // the embedding again, when the file ties them
  std::vector<float> rope_divisors;  // one per rotated pair; empty when the file has none
};

// shape.vocab is set from the embedding's rows.
Result<DecoderWeights> load_decoder(const DecoderRows& rows, WeightSource& source,
                                    ModelShape& shape, int64_t n_rot);

}  // namespace cutaway::arch
