// Gemma 3's text models (arXiv:2503.19786): as Gemma 2, but q and k are normed head by head instead
// of soft-capping the scores, five layers of six see a window of keys, and those have a rotary base
// of their own, which no scaling stretches.

#include <cmath>

#include "arch/config.h"
#include "arch/decoder.h"
#include "arch/published.h"
#include "arch/windows.h"
#include "trace/trace.h"

namespace cutaway::arch {
namespace {

constexpr Transform kOne = Transform::kNormPlusOne;

constexpr DecoderRows kRows{
    .embedding = {"token_embd.weight", "model.embed_tokens.weight"},
    .final_norm = {"output_norm.weight", "model.norm.weight", kOne},
    .head = {"output.weight", "lm_head.weight", Transform::kNone, true},
    .rope_divisors = {},
    .attention_norm = {"blk.{l}.attn_norm.weight", "model.layers.{l}.input_layernorm.weight", kOne},
    .q = {{"blk.{l}.attn_q.weight", "model.layers.{l}.self_attn.q_proj.weight"}, {}},
    .k = {{"blk.{l}.attn_k.weight", "model.layers.{l}.self_attn.k_proj.weight"}, {}},
    .v = {{"blk.{l}.attn_v.weight", "model.layers.{l}.self_attn.v_proj.weight"}, {}},
    .o = {{"blk.{l}.attn_output.weight", "model.layers.{l}.self_attn.o_proj.weight"}, {}},
    .mlp_norm = {"blk.{l}.ffn_norm.weight", "model.layers.{l}.pre_feedforward_layernorm.weight",
                 kOne},
    .gate = {{"blk.{l}.ffn_gate.weight", "model.layers.{l}.mlp.gate_proj.weight"}, {}},
    .up = {{"blk.{l}.ffn_up.weight", "model.layers.{l}.mlp.up_proj.weight"}, {}},
    .down = {{"blk.{l}.ffn_down.weight", "model.layers.{l}.mlp.down_proj.weight"}, {}},
    .q_norm = {"blk.{l}.attn_q_norm.weight", "model.layers.{l}.self_attn.q_norm.weight", kOne},
    .k_norm = {"blk.{l}.attn_k_norm.weight", "model.layers.{l}.self_attn.k_norm.weight", kOne},
    .post_attention_norm = {"blk.{l}.post_attention_norm.weight",
                            "model.layers.{l}.post_attention_layernorm.weight", kOne},
    .post_mlp_norm = {"blk.{l}.post_ffw_norm.weight",
                      "model.layers.{l}.post_feedforward_layernorm.weight", kOne},
    .reads_window = true,
    .activation = ops::Activation::kGelu,
    .rope = {.hugging_face_section = "full_attention", .theta = 1e6},
};

Result<double> read_local_theta(const ConfigReader& config) {
  const char* const section = "rope_parameters.sliding_attention.rope_theta";
  CUTAWAY_ASSIGN(
      const double theta,
      config.positive_or(
          "rope.freq_base_swa",
          config.has("rope.freq_base_swa", section) ? section : "rope_local_base_freq", 10000));
  if (theta > 1) return theta;
  const std::string key = config.key("rope.freq_base_swa", "rope_local_base_freq");
  return Error{ErrorCode::kInvalidFile,
               "metadata " + key + " is " + std::to_string(theta) + ", expected a number above 1",
               key};
}

class Gemma3 final : public Transformer {
 public:
  Gemma3(Decoder model, LocalLayers layers, ops::Rope local_rope, float logit_cap)
      : model_(std::move(model)),
        local_(std::move(layers)),
        local_rope_(std::move(local_rope)),
        logit_cap_(logit_cap) {
    local_attention_ = model_.attention;
    local_attention_.window = local_.window;
  }

  static Result<std::unique_ptr<Transformer>> load(const Metadata& metadata, WeightSource& source) {
    CUTAWAY_SPAN(span, "arch::Gemma3::load");
    const ConfigReader config(metadata);
    CUTAWAY_ASSIGN(Decoder model, load_decoder(kRows, metadata, source));
    // The 27B, whose scores are scaled by 1/√(d_model / heads), is known by its 62 layers.
    CUTAWAY_ASSIGN(model.attention.scale, gemma_score_scale(config, model.shape, 62));
    ops::RopeConfig local;
    local.n_rot = model.rope.n_rot();
    CUTAWAY_ASSIGN(local.theta, read_local_theta(config));
    double logit_cap = 0;
    if (config.has("final_logit_softcapping", "final_logit_softcapping")) {
      CUTAWAY_ASSIGN(logit_cap,
                     config.positive("final_logit_softcapping", "final_logit_softcapping"));
    }
    CUTAWAY_ASSIGN(LocalLayers layers, read_local_layers(config, model.shape, 0, 6));
    CUTAWAY_OUT(span, "layers", model.shape.n_layers, "vocab", model.shape.vocab);
    return std::unique_ptr<Transformer>(std::make_unique<Gemma3>(
        std::move(model), std::move(layers), ops::Rope(local), static_cast<float>(logit_cap)));
  }

  const ModelShape& shape() const override { return model_.shape; }
  Products products() const override { return decoder_products(model_); }

  ops::Rows forward(ops::Pass& pass) const override {
    CUTAWAY_SPAN(span, "arch::Gemma3::forward", "rows", pass.rows());
    const Decoder& m = model_;
    // The residual stream, {rows, d_model}.
    const ops::Rows x =
        ops::embed(pass, m.embedding, std::sqrt(static_cast<float>(m.shape.d_model)));
    const ops::Rope::Angles global_angles = m.rope.angles(pass);
    const ops::Rope::Angles local_angles = local_rope_.angles(pass);
    for (int layer = 0; layer < static_cast<int>(m.shape.n_layers); ++layer) {
      const LayerScope scope(pass, layer);
      const auto index = static_cast<size_t>(layer);
      const DecoderLayer& w = m.layers[index];
      const bool local = local_.local[index];
      const ops::AttentionShape& attention = local ? local_attention_ : m.attention;
      const ops::Rope& rope = local ? local_rope_ : m.rope;
      const ops::Rope::Angles& angles = local ? local_angles : global_angles;

      ops::Input normalized = ops::rms_norm(pass, ops::kNorm1, layer, x, w.attention_norm, m.eps,
                                            w.attention.readers());
      const ops::Rows attended =
          ops::self_attention(pass, layer, attention, w.attention, rope, angles, normalized);
      ops::rms_norm_parts(pass, attended, w.post_attention_norm, m.eps);
      ops::add_residual(pass, ops::kAfterAttention, layer, x, attended);

      normalized = ops::rms_norm(pass, ops::kNorm2, layer, x, w.mlp_norm, m.eps, w.mlp.readers());
      const ops::Rows transformed = ops::gated_mlp(pass, layer, w.mlp, normalized);
      ops::rms_norm_parts(pass, transformed, w.post_mlp_norm, m.eps);
      ops::add_residual(pass, ops::kAfterMlp, layer, x, transformed);
    }
    const ops::Rows logits = unembed(pass, x);
    CUTAWAY_OUT(span, "logits", logits.view());
    return logits;
  }

  ops::Rows unembed(ops::Pass& pass, const ops::Rows& x) const override {
    CUTAWAY_SPAN(span, "arch::Gemma3::unembed", "x", x.view());
    const ops::Rows logits =
        ops::unembed(pass, x, model_.final_norm, model_.eps, model_.head, {.soft_cap = logit_cap_});
    CUTAWAY_OUT(span, "logits", logits.view());
    return logits;
  }

 private:
  Decoder model_;
  LocalLayers local_;
  ops::AttentionShape local_attention_;
  ops::Rope local_rope_;
  float logit_cap_;
};

std::vector<Metadata> tiny_configs() {
  std::vector<Metadata> configs;
  const auto add = [&](TinyConfig tiny) -> Metadata& {
    return configs.emplace_back(tiny_decoder_metadata("gemma3", tiny));
  };
  // Layers without a window, windows of a whole tile and of one key, and a pattern that is said.
  add({});
  Metadata& period = add({.n_layers = 4, .n_heads = 3, .n_kv_heads = 1, .d_head = 40});
  period.insert("gemma3.attention.sliding_window", int64_t{64});
  period.insert("gemma3.attention.sliding_window_pattern", int64_t{2});
  period.insert("gemma3.rope.freq_base_swa", 500.0);
  Metadata& flags = add({.n_heads = 4, .n_kv_heads = 4, .d_head = 24, .rope_scaling = "linear"});
  flags.insert("gemma3.attention.sliding_window", int64_t{1});
  flags.insert("gemma3.attention.sliding_window_pattern", std::vector<bool>{false, true});
  flags.insert("gemma3.final_logit_softcapping", 3.0);
  flags.insert("gemma3.attention.scale", 0.15);
  return configs;
}

// As published with the weights.
std::vector<PublishedShape> published_shapes() {
  // layers, d_model, heads, KV heads, d_head, d_mlp, vocabulary, context, theta, eps, tied
  constexpr DecoderFacts kFacts[] = {
      {"gemma-3-270m", 18, 640, 4, 1, 256, 2048, 262144, 32768, 1e6, 1e-6f, true},
      {"gemma-3-1b", 26, 1152, 4, 1, 256, 6912, 262144, 32768, 1e6, 1e-6f, true},
  };
  std::vector<PublishedShape> shapes;
  for (const DecoderFacts& facts : kFacts) {
    shapes.push_back(published_decoder("gemma3", facts));
    Metadata& metadata = shapes.back().metadata;
    metadata.insert("gemma3.attention.sliding_window", uint64_t{512});
    metadata.insert("gemma3.rope.freq_base_swa", 10000.0);
  }
  return shapes;
}

}  // namespace

extern const Architecture kGemma3;
const Architecture kGemma3{"gemma3", &Gemma3::load, &tiny_configs, &published_shapes};

}  // namespace cutaway::arch
