// Reads an architecture's configuration from neutral metadata, whichever format it came from.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "arch/architecture.h"
#include "base/result.h"
#include "ops/blocks.h"
#include "tensor/model_file.h"

namespace cutaway::arch {

// Where the rotary settings of an architecture are, beside the keys that all share.
struct RopeKeys {
  // The part of Hugging Face's rope_parameters that is meant, where it has several.
  const char* hugging_face_section = "";
  double theta = 10000;       // of files that name none
  bool long_factors = false;  // LongRoPE, with two sets of divisors, is possible
};

// GGUF keys are under "{architecture}."; Hugging Face keys stand as they are in config.json. A row
// of a config table gives both names.
class ConfigReader {
 public:
  explicit ConfigReader(const Metadata& metadata);

  bool has(std::string_view gguf, std::string_view hugging_face) const;
  Result<int64_t> integer(std::string_view gguf, std::string_view hugging_face, int64_t min,
                          int64_t max) const;
  Result<int64_t> integer_or(std::string_view gguf, std::string_view hugging_face, int64_t fallback,
                             int64_t min, int64_t max) const;
  // Finite and > 0.
  Result<double> positive(std::string_view gguf, std::string_view hugging_face) const;
  Result<double> positive_or(std::string_view gguf, std::string_view hugging_face,
                             double fallback) const;

  // The rotary settings; an unknown scaling type is an error, never a default. `d_head`: the
  // rotated size when the file names none.
  Result<ops::RopeConfig> rope(int64_t d_head, const RopeKeys& keys = {}) const;
  // What two sets of divisors need: the context before scaling, and the factor of cos and sin.
  Status finish_long_rope(ops::RopeConfig& rope) const;

  // Error kUnsupported when the Hugging Face key holds another text than one of `known`. GGUF files
  // have no such key; an absent one says nothing.
  Status require_text(std::string_view hugging_face,
                      std::initializer_list<std::string_view> known) const;

  // The key as the file spells it.
  std::string key(std::string_view gguf, std::string_view hugging_face) const {
    return gguf_ ? prefix_ + std::string(gguf) : std::string(hugging_face);
  }
  const Metadata& metadata() const { return metadata_; }
  bool gguf() const { return gguf_; }

 private:
  Status refuse_scaling_without_type(const std::string& type_key, const std::string& section) const;
  Status read_scaling(const std::string& section, const RopeKeys& keys,
                      ops::RopeConfig& config) const;
  // "rope_parameters.", the section's part of it, or "rope_scaling.": whichever the file has.
  std::string rope_section(const RopeKeys& keys) const;

  const Metadata& metadata_;
  bool gguf_;
  std::string prefix_;
};

// What pre-norm decoders have in common; every value is checked against the others. `mixture`:
// MLPs are experts, whose number and width are read too; else a file that has them is refused.
struct DecoderConfig {
  ModelShape shape;  // vocab is not set yet
  float eps = 0;     // of the RMS norms
};
// Error kUnsupported when layers see a window of keys that is shorter than the context.
Status refuse_window(const ConfigReader& config, int64_t context_length);
// Error kUnsupported when the file names another activation.
Status check_activation(const ConfigReader& config, ops::Activation activation);
Result<DecoderConfig> read_decoder_config(const ConfigReader& config, bool mixture = false);

// Attention over `shape` with scores scaled by 1/√d_head.
ops::AttentionShape attention_shape(const ModelShape& shape);

// The scale of Gemma's scores: 1/√query_pre_attn_scalar. GGUF files do not say it: it is that of
// the head size, but for the one size with `odd_layers` layers, which has d_model / heads.
Result<float> gemma_score_scale(const ConfigReader& config, const ModelShape& shape,
                                int64_t odd_layers);

// What a layer's blocks took from the scratch memory is given back at the end of the layer, and its
// trace records carry the layer.
class LayerScope {
 public:
  LayerScope(ops::Pass& pass, int layer);
  ~LayerScope();
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

 private:
  ops::Pass& pass_;
  ops::Scratch::Mark mark_;
  int32_t outer_layer_;
};

// Metadata of a tiny model, for tests.
struct TinyConfig {
  int64_t n_layers = 2, n_heads = 4, n_kv_heads = 2, d_head = 16, d_model = 64, d_mlp = 96;
  int64_t context = 256;
  const char* rope_scaling = "none";
  // A mixture, when n_experts > 0.
  int64_t n_experts = 0, n_experts_used = 0;
  int64_t d_expert = 0;  // 0: d_mlp is an expert's width
  int64_t d_shared = 0;  // of the shared expert; 0: there is none
};
Metadata tiny_decoder_metadata(const std::string& architecture, const TinyConfig& tiny);

}  // namespace cutaway::arch
