// Gemma 2 (arXiv:2408.00118): embeddings times √d_model, norms before and after attention and MLP,
// every second layer sees a window of keys, scores and logits are soft-capped, a GELU in the MLP.

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
    .post_attention_norm = {"blk.{l}.post_attention_norm.weight",
                            "model.layers.{l}.post_attention_layernorm.weight", kOne},
    .post_mlp_norm = {"blk.{l}.post_ffw_norm.weight",
                      "model.layers.{l}.post_feedforward_layernorm.weight", kOne},
    .reads_window = true,
    .activation = ops::Activation::kGelu,
};

class Gemma2 final : public Transformer {
 public:
  Gemma2(Decoder model, LocalLayers layers, float logit_cap)
      : model_(std::move(model)), local_(std::move(layers)), logit_cap_(logit_cap) {
    local_attention_ = model_.attention;
    local_attention_.window = local_.window;
  }

  static Result<std::unique_ptr<Transformer>> load(const Metadata& metadata, WeightSource& source) {
    CUTAWAY_SPAN(span, "arch::Gemma2::load");
    const ConfigReader config(metadata);
    CUTAWAY_ASSIGN(Decoder model, load_decoder(kRows, metadata, source));
    // The 27B, whose scores are scaled by 1/√(d_model / heads), is known by its 46 layers.
    CUTAWAY_ASSIGN(model.attention.scale, gemma_score_scale(config, model.shape, 46));
    CUTAWAY_ASSIGN(const double cap,
                   config.positive_or("attn_logit_softcapping", "attn_logit_softcapping", 50));
    model.attention.soft_cap = static_cast<float>(cap);
    CUTAWAY_ASSIGN(const double logit_cap,
                   config.positive_or("final_logit_softcapping", "final_logit_softcapping", 30));
    CUTAWAY_ASSIGN(LocalLayers layers, read_local_layers(config, model.shape, 4096, 2));
    CUTAWAY_OUT(span, "layers", model.shape.n_layers, "vocab", model.shape.vocab);
    return std::unique_ptr<Transformer>(std::make_unique<Gemma2>(
        std::move(model), std::move(layers), static_cast<float>(logit_cap)));
  }

  const ModelShape& shape() const override { return model_.shape; }
  Products products() const override { return decoder_products(model_); }

  ops::Rows forward(ops::Pass& pass) const override {
    CUTAWAY_SPAN(span, "arch::Gemma2::forward", "rows", pass.rows());
    const Decoder& m = model_;
    // The residual stream, {rows, d_model}.
    const ops::Rows x =
        ops::embed(pass, m.embedding, std::sqrt(static_cast<float>(m.shape.d_model)));
    const ops::Rope::Angles angles = m.rope.angles(pass);
    for (int layer = 0; layer < static_cast<int>(m.shape.n_layers); ++layer) {
      const LayerScope scope(pass, layer);
      const auto index = static_cast<size_t>(layer);
      const DecoderLayer& w = m.layers[index];
      const ops::AttentionShape& attention = local_.local[index] ? local_attention_ : m.attention;

      ops::Input normalized = ops::rms_norm(pass, ops::kNorm1, layer, x, w.attention_norm, m.eps,
                                            w.attention.readers());
      const ops::Rows attended =
          ops::self_attention(pass, layer, attention, w.attention, m.rope, angles, normalized);
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
    CUTAWAY_SPAN(span, "arch::Gemma2::unembed", "x", x.view());
    const ops::Rows logits =
        ops::unembed(pass, x, model_.final_norm, model_.eps, model_.head, {.soft_cap = logit_cap_});
    CUTAWAY_OUT(span, "logits", logits.view());
    return logits;
  }

 private:
  Decoder model_;
  LocalLayers local_;
  ops::AttentionShape local_attention_;
  float logit_cap_;
};

std::vector<Metadata> tiny_configs() {
  std::vector<Metadata> configs;
  const auto add = [&](TinyConfig tiny, int64_t window, double score_cap, double logit_cap) {
    Metadata metadata = tiny_decoder_metadata("gemma2", tiny);
    metadata.insert("gemma2.attention.sliding_window", window);
    metadata.insert("gemma2.attn_logit_softcapping", score_cap);
    metadata.insert("gemma2.final_logit_softcapping", logit_cap);
    configs.push_back(std::move(metadata));
  };
  add({.n_layers = 3}, 20, 50, 30);
  add({.n_heads = 3, .n_kv_heads = 1, .d_head = 40}, 64, 2, 3);
  add({.n_heads = 4, .n_kv_heads = 4, .d_head = 24}, 1, 50, 30);
  configs.back().insert("gemma2.attention.scale", 0.15);
  return configs;
}

// As published with the weights.
std::vector<PublishedShape> published_shapes() {
  // layers, d_model, heads, KV heads, d_head, d_mlp, vocabulary, context, theta, eps, tied
  constexpr DecoderFacts kFacts[] = {
      {"gemma-2-2b", 26, 2304, 8, 4, 256, 9216, 256000, 8192, 1e4, 1e-6f, true},
      {"gemma-2-9b", 42, 3584, 16, 8, 256, 14336, 256000, 8192, 1e4, 1e-6f, true},
  };
  std::vector<PublishedShape> shapes;
  for (const DecoderFacts& facts : kFacts) {
    shapes.push_back(published_decoder("gemma2", facts));
    Metadata& metadata = shapes.back().metadata;
    metadata.insert("gemma2.attention.sliding_window", uint64_t{4096});
    metadata.insert("gemma2.attn_logit_softcapping", 50.0);
    metadata.insert("gemma2.final_logit_softcapping", 30.0);
  }
  return shapes;
}

}  // namespace

extern const Architecture kGemma2;
const Architecture kGemma2{"gemma2", &Gemma2::load, &tiny_configs, &published_shapes};

}  // namespace cutaway::arch
