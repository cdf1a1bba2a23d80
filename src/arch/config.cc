#include "arch/config.h"

#include <cmath>

#include "trace/trace.h"

namespace cutaway::arch {

ConfigReader::ConfigReader(const Metadata& metadata)
    : metadata_(metadata), gguf_(metadata.has("general.architecture")) {
  CUTAWAY_SPAN(span, "arch::ConfigReader");
  if (gguf_) {
    auto name = metadata.string("general.architecture");
    if (name.ok()) prefix_ = *name + ".";
  }
  CUTAWAY_OUT(span, "gguf", gguf_, "prefix", prefix_);
}

bool ConfigReader::has(std::string_view gguf, std::string_view hugging_face) const {
  CUTAWAY_SPAN(span, "arch::ConfigReader::has", "key", key(gguf, hugging_face));
  const bool has = metadata_.has(key(gguf, hugging_face));
  CUTAWAY_OUT(span, "has", has);
  return has;
}

Result<int64_t> ConfigReader::integer(std::string_view gguf, std::string_view hugging_face,
                                      int64_t min, int64_t max) const {
  CUTAWAY_SPAN(span, "arch::ConfigReader::integer", "key", key(gguf, hugging_face));
  CUTAWAY_ASSIGN(const int64_t value, metadata_.integer(key(gguf, hugging_face), min, max));
  CUTAWAY_OUT(span, "value", value);
  return value;
}

Result<int64_t> ConfigReader::integer_or(std::string_view gguf, std::string_view hugging_face,
                                         int64_t fallback, int64_t min, int64_t max) const {
  CUTAWAY_SPAN(span, "arch::ConfigReader::integer_or", "key", key(gguf, hugging_face));
  CUTAWAY_ASSIGN(const int64_t value,
                 metadata_.integer_or(key(gguf, hugging_face), fallback, min, max));
  CUTAWAY_OUT(span, "value", value);
  return value;
}

Result<double> ConfigReader::positive(std::string_view gguf, std::string_view hugging_face) const {
  CUTAWAY_SPAN(span, "arch::ConfigReader::positive", "key", key(gguf, hugging_face));
  CUTAWAY_ASSIGN(const double value, metadata_.number(key(gguf, hugging_face)));
  if (!(value > 0)) {
    return Error{ErrorCode::kInvalidFile,
                 "metadata " + key(gguf, hugging_face) + " is " + std::to_string(value) +
                     ", expected a number above 0",
                 key(gguf, hugging_face)};
  }
  CUTAWAY_OUT(span, "value", value);
  return value;
}

Result<double> ConfigReader::positive_or(std::string_view gguf, std::string_view hugging_face,
                                         double fallback) const {
  CUTAWAY_SPAN(span, "arch::ConfigReader::positive_or", "key", key(gguf, hugging_face));
  if (!has(gguf, hugging_face)) {
    CUTAWAY_OUT(span, "value", fallback);
    return fallback;
  }
  return positive(gguf, hugging_face);
}

Result<ops::RopeConfig> ConfigReader::rope(int64_t d_head) const {
  CUTAWAY_SPAN(span, "arch::ConfigReader::rope", "d_head", d_head);
  ops::RopeConfig config;
  CUTAWAY_ASSIGN(config.n_rot, integer_or("rope.dimension_count", "rotary_dim", d_head, 2, d_head));
  if (config.n_rot % 2 != 0) {
    return Error{ErrorCode::kInvalidFile,
                 "metadata " + key("rope.dimension_count", "rotary_dim") + " is " +
                     std::to_string(config.n_rot) + ", expected an even number",
                 key("rope.dimension_count", "rotary_dim")};
  }
  CUTAWAY_ASSIGN(config.theta, positive_or("rope.freq_base", "rope_theta", 10000));
  if (config.theta <= 1) {
    return Error{ErrorCode::kInvalidFile,
                 "metadata " + key("rope.freq_base", "rope_theta") + " is " +
                     std::to_string(config.theta) + ", expected a number above 1",
                 key("rope.freq_base", "rope_theta")};
  }
  const std::string type_key = key("rope.scaling.type", "rope_scaling.rope_type");
  CUTAWAY_ASSIGN(const std::string type, metadata_.string_or(type_key, "none"));
  if (type == "linear" || type == "yarn") {
    config.scaling = type == "linear" ? ops::RopeScaling::kLinear : ops::RopeScaling::kYarn;
    CUTAWAY_ASSIGN(config.factor, positive("rope.scaling.factor", "rope_scaling.factor"));
  } else if (type == "none" || type == "default") {
    CUTAWAY_TRY(refuse_scaling_without_type(type_key));
  } else {
    return Error{ErrorCode::kUnsupported,
                 "metadata " + type_key + " is \"" + type +
                     "\"; this version knows none, linear, yarn, and Llama 3's rope_freqs tensor",
                 type_key};
  }
  if (config.scaling == ops::RopeScaling::kYarn) {
    CUTAWAY_ASSIGN(config.original_context,
                   positive("rope.scaling.original_context_length",
                            "rope_scaling.original_max_position_embeddings"));
    CUTAWAY_ASSIGN(config.beta_fast, positive_or("rope.scaling.yarn_beta_fast",
                                                 "rope_scaling.beta_fast", config.beta_fast));
    CUTAWAY_ASSIGN(config.beta_slow, positive_or("rope.scaling.yarn_beta_slow",
                                                 "rope_scaling.beta_slow", config.beta_slow));
    if (has("rope.scaling.yarn_attn_factor", "rope_scaling.attention_factor")) {
      CUTAWAY_ASSIGN(config.attention_factor,
                     positive("rope.scaling.yarn_attn_factor", "rope_scaling.attention_factor"));
    }
  }
  CUTAWAY_OUT(span, "n_rot", config.n_rot, "theta", config.theta, "scaling", type, "factor",
              config.factor);
  return config;
}

// A factor that nothing says how to apply: other readers take linear scaling for it.
Status ConfigReader::refuse_scaling_without_type(const std::string& type_key) const {
  CUTAWAY_SPAN(span, "arch::ConfigReader::refuse_scaling_without_type", "key", type_key);
  if (metadata_.has(type_key)) return {};
  for (const char* gguf : {"rope.scaling.factor", "rope.scale_linear"}) {
    const std::string factor_key = key(gguf, "rope_scaling.factor");
    CUTAWAY_ASSIGN(const double factor, metadata_.number_or(factor_key, 1));
    if (factor == 1 || factor == 0) continue;  // 0 is how writers say that there is none
    return Error{ErrorCode::kUnsupported,
                 "metadata " + factor_key + " is " + std::to_string(factor) + ", but " + type_key +
                     " is not there: add it (linear or yarn; none to leave the factor out)",
                 type_key};
  }
  return {};
}

namespace {

// Settings of other models that carry the same architecture name: ignoring one would give a wrong
// answer without a word.
Status refuse_unknown_settings(const ConfigReader& config, int64_t context_length, bool mixture) {
  struct Setting {
    const char* gguf;
    const char* hugging_face;
    int64_t harmless;  // values up to this, or from `context_length` on, change nothing
  };
  // A gating function is 1, the softmax, or left out; groups of experts are chosen before experts.
  const Setting kSettings[] = {{"expert_count", "num_local_experts", mixture ? INT64_MAX : 1},
                               {"expert_gating_func", "scoring_func", 1},
                               {"expert_group_count", "n_group", 1},
                               {"attention.sliding_window", "window", 0}};
  for (const Setting& setting : kSettings) {
    CUTAWAY_ASSIGN(const int64_t value,
                   config.integer_or(setting.gguf, setting.hugging_face, 0, 0, INT64_MAX));
    if (value > setting.harmless && value < context_length) {
      const std::string key = config.key(setting.gguf, setting.hugging_face);
      return Error{
          ErrorCode::kUnsupported,
          "metadata " + key + " is " + std::to_string(value) + ", which this version does not run",
          key};
    }
  }
  return {};
}

Status read_experts(const ConfigReader& config, ModelShape& shape) {
  constexpr int64_t kMostExperts = 4096;
  const auto hugging_face = [&](const char* a, const char* b) {
    return config.metadata().has(a) ? a : b;
  };
  CUTAWAY_ASSIGN(shape.n_experts,
                 config.integer("expert_count", hugging_face("num_local_experts", "num_experts"), 1,
                                kMostExperts));
  CUTAWAY_ASSIGN(shape.n_experts_used,
                 config.integer("expert_used_count", "num_experts_per_tok", 1, shape.n_experts));
  return {};
}

}  // namespace

Result<DecoderConfig> read_decoder_config(const ConfigReader& config, bool mixture) {
  CUTAWAY_SPAN(span, "arch::read_decoder_config", "mixture", mixture);
  DecoderConfig out;
  ModelShape& shape = out.shape;
  // Bounds are far above any published model: they keep products of sizes inside 63 bits.
  constexpr int64_t kMaxWidth = int64_t{1} << 24;
  CUTAWAY_ASSIGN(shape.n_layers, config.integer("block_count", "num_hidden_layers", 1, 4096));
  CUTAWAY_ASSIGN(shape.d_model, config.integer("embedding_length", "hidden_size", 1, kMaxWidth));
  if (mixture) {
    CUTAWAY_TRY(read_experts(config, shape));
  }
  const bool expert_width =
      mixture && config.has("expert_feed_forward_length", "moe_intermediate_size");
  CUTAWAY_ASSIGN(shape.d_mlp, expert_width ? config.integer("expert_feed_forward_length",
                                                            "moe_intermediate_size", 1, kMaxWidth)
                                           : config.integer("feed_forward_length",
                                                            "intermediate_size", 1, kMaxWidth));
  CUTAWAY_ASSIGN(shape.n_heads,
                 config.integer("attention.head_count", "num_attention_heads", 1, 65536));
  CUTAWAY_ASSIGN(shape.n_kv_heads,
                 config.integer_or("attention.head_count_kv", "num_key_value_heads", shape.n_heads,
                                   1, shape.n_heads));
  const auto wrong = [&](const std::string& key, const std::string& why) {
    return Error{ErrorCode::kInvalidFile, "metadata " + key + " " + why, key};
  };
  if (shape.n_heads % shape.n_kv_heads != 0) {
    return wrong(config.key("attention.head_count_kv", "num_key_value_heads"),
                 "is " + std::to_string(shape.n_kv_heads) + ", which does not divide the " +
                     std::to_string(shape.n_heads) + " heads");
  }
  if (!config.has("attention.key_length", "head_dim") && shape.d_model % shape.n_heads != 0) {
    return wrong(config.key("attention.head_count", "num_attention_heads"),
                 "is " + std::to_string(shape.n_heads) + ", which does not divide the width " +
                     std::to_string(shape.d_model) + ", and the file names no head size");
  }
  CUTAWAY_ASSIGN(shape.d_head,
                 config.integer_or("attention.key_length", "head_dim",
                                   shape.d_model / shape.n_heads, 2, kernels::kMaxHeadSize));
  CUTAWAY_ASSIGN(const int64_t d_value, config.integer_or("attention.value_length", "head_dim",
                                                          shape.d_head, 1, kernels::kMaxHeadSize));
  if (d_value != shape.d_head) {
    return wrong(
        config.key("attention.value_length", "head_dim"),
        "is " + std::to_string(d_value) + ", expected the key's " + std::to_string(shape.d_head));
  }
  CUTAWAY_ASSIGN(shape.context_length,
                 config.integer("context_length", "max_position_embeddings", 1, 1 << 30));
  CUTAWAY_TRY(refuse_unknown_settings(config, shape.context_length, mixture));
  CUTAWAY_ASSIGN(const double eps,
                 config.positive("attention.layer_norm_rms_epsilon", "rms_norm_eps"));
  out.eps = static_cast<float>(eps);
  CUTAWAY_OUT(span, "layers", shape.n_layers, "d_model", shape.d_model, "heads", shape.n_heads,
              "kv_heads", shape.n_kv_heads, "d_head", shape.d_head, "d_mlp", shape.d_mlp, "context",
              shape.context_length);
  return out;
}

ops::AttentionShape attention_shape(const ModelShape& shape) {
  CUTAWAY_SPAN(span, "arch::attention_shape", "heads", shape.n_heads, "kv_heads", shape.n_kv_heads,
               "d_head", shape.d_head);
  ops::AttentionShape out;
  out.n_heads = shape.n_heads;
  out.n_kv_heads = shape.n_kv_heads;
  out.d_head = shape.d_head;
  out.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.d_head)));
  CUTAWAY_OUT(span, "scale", out.scale);
  return out;
}

LayerScope::LayerScope(ops::Pass& pass, int layer)
    : pass_(pass), mark_(pass.scratch.mark()), outer_layer_(trace::t_context.at.layer) {
  trace::t_context.at.layer = layer;
}

LayerScope::~LayerScope() {
  pass_.scratch.rewind(mark_);
  trace::t_context.at.layer = outer_layer_;
}

Metadata tiny_decoder_metadata(const std::string& architecture, const TinyConfig& tiny) {
  Metadata metadata;
  const auto set = [&](const char* key, MetaValue value) {
    metadata.insert(architecture + "." + key, std::move(value));
  };
  metadata.insert("general.architecture", architecture);
  set("block_count", tiny.n_layers);
  set("embedding_length", tiny.d_model);
  set("feed_forward_length", tiny.d_mlp);
  set("attention.head_count", tiny.n_heads);
  set("attention.head_count_kv", tiny.n_kv_heads);
  set("attention.key_length", tiny.d_head);
  set("attention.value_length", tiny.d_head);
  set("attention.layer_norm_rms_epsilon", 1e-5);
  set("context_length", tiny.context);
  if (tiny.n_experts > 0) {
    set("expert_count", tiny.n_experts);
    set("expert_used_count", tiny.n_experts_used);
    if (tiny.d_expert > 0) set("expert_feed_forward_length", tiny.d_expert);
    if (tiny.d_shared > 0) set("expert_shared_feed_forward_length", tiny.d_shared);
  }
  set("rope.freq_base", 10000.0);
  if (tiny.rope_scaling != std::string("none")) {
    set("rope.scaling.type", std::string(tiny.rope_scaling));
    set("rope.scaling.factor", 4.0);
    set("rope.scaling.original_context_length", int64_t{64});
  }
  return metadata;
}

}  // namespace cutaway::arch
