// Shapes of published models, for files with random weights. Facts come from the configuration that
// the makers published with the weights; each architecture's file lists its own.
#pragma once

#include <string>
#include <vector>

#include "arch/architecture.h"

namespace cutaway::arch {

// Of a mixture of experts.
struct MixtureFacts {
  int64_t n_experts = 0, n_used = 0;  // 0: no mixture
  int64_t d_expert = 0;               // 0: d_mlp is an expert's width
  int64_t d_shared = 0;               // of the shared expert; 0: there is none
};

// How Llama 3.1 and 3.2 stretch their rotary frequencies (rope_type "llama3").
struct Llama3Scaling {
  double factor = 0;  // 0: none
  double low_frequency_factor = 1, high_frequency_factor = 4;
  double original_context = 8192;
};

// A row of an architecture's table of decoders.
struct DecoderFacts {
  const char* name;
  int64_t n_layers, d_model, n_heads, n_kv_heads, d_head, d_mlp, vocab, context;
  double rope_theta;
  float eps;
  bool tied;  // the head is the embedding
  Llama3Scaling scaling = {};
  MixtureFacts mixture = {};
};
PublishedShape published_decoder(const std::string& architecture, const DecoderFacts& facts);

}  // namespace cutaway::arch
