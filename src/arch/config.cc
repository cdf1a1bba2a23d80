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

Status ConfigReader::require_text(std::string_view hugging_face,
                                  std::initializer_list<std::string_view> known) const {
  CUTAWAY_SPAN(span, "arch::ConfigReader::require_text", "key", hugging_face);
  if (gguf_ || !metadata_.has(hugging_face)) return {};
  CUTAWAY_ASSIGN(const std::string text, metadata_.string(hugging_face));
  std::string all;
  for (const std::string_view one : known) {
    if (text == one) return {};
    all += (all.empty() ? "" : ", ") + std::string(one);
  }
  CUTAWAY_OUT(span, "text", text);
  return Error{ErrorCode::kUnsupported,
               "metadata " + std::string(hugging_face) + " is \"" + text +
                   "\"; for this architecture this version knows: " + all,
               std::string(hugging_face)};
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
                               {"expert_group_count", "n_group", 1}};
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

Status refuse_window(const ConfigReader& config, int64_t context_length) {
  CUTAWAY_SPAN(span, "arch::refuse_window", "context", context_length);
  // Configurations of models without one carry it too, switched off.
  const bool off = config.metadata().has("use_sliding_window");
  CUTAWAY_ASSIGN(const bool used, config.metadata().boolean_or("use_sliding_window", true));
  if (off && !used) return {};
  CUTAWAY_ASSIGN(const int64_t window,
                 config.integer_or("attention.sliding_window", "sliding_window", 0, 0, INT64_MAX));
  if (window > 0 && window < context_length) {
    const std::string key = config.key("attention.sliding_window", "sliding_window");
    return Error{ErrorCode::kUnsupported,
                 "metadata " + key + " is " + std::to_string(window) +
                     ", which this version does not run for this architecture",
                 key};
  }
  CUTAWAY_OUT(span, "window", window);
  return {};
}

Status check_activation(const ConfigReader& config, ops::Activation activation) {
  CUTAWAY_SPAN(span, "arch::check_activation", "activation", static_cast<int>(activation));
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    if (activation == ops::Activation::kSilu) {
      CUTAWAY_TRY(config.require_text(key, {"silu", "swish"}));
    } else {
      CUTAWAY_TRY(config.require_text(key, {"gelu_pytorch_tanh", "gelu_new"}));
    }
  }
  return {};
}

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

Result<float> gemma_score_scale(const ConfigReader& config, const ModelShape& shape,
                                int64_t odd_layers) {
  CUTAWAY_SPAN(span, "arch::gemma_score_scale", "layers", shape.n_layers);
  const int64_t usual = shape.n_layers == odd_layers ? shape.d_model / shape.n_heads : shape.d_head;
  double scale = 1 / std::sqrt(static_cast<double>(usual));
  if (config.has("attention.scale", "query_pre_attn_scalar")) {
    CUTAWAY_ASSIGN(const double value, config.positive("attention.scale", "query_pre_attn_scalar"));
    scale = config.gguf() ? value : 1 / std::sqrt(value);
  }
  CUTAWAY_OUT(span, "scale", scale);
  return static_cast<float>(scale);
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
