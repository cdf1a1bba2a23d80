// OLMo 2 (arXiv:2501.00656): nothing is normed before attention and MLP, what they give is; q and k
// are normed over all heads together. OLMo 3 (arXiv:2512.13961), whose files have the same name:
// three layers of four see a window of keys, and their rotary frequencies are not stretched.

#include "arch/config.h"
#include "arch/decoder.h"
#include "arch/published.h"
#include "arch/windows.h"
#include "trace/trace.h"

namespace cutaway::arch {
namespace {

constexpr DecoderRows kRows{
    .embedding = {"token_embd.weight", "model.embed_tokens.weight"},
    .final_norm = {"output_norm.weight", "model.norm.weight"},
    .head = {"output.weight", "lm_head.weight", Transform::kNone, true},
    .rope_divisors = {},
    .attention_norm = {},
    .q = {{"blk.{l}.attn_q.weight", "model.layers.{l}.self_attn.q_proj.weight"}, {}},
    .k = {{"blk.{l}.attn_k.weight", "model.layers.{l}.self_attn.k_proj.weight"}, {}},
    .v = {{"blk.{l}.attn_v.weight", "model.layers.{l}.self_attn.v_proj.weight"}, {}},
    .o = {{"blk.{l}.attn_output.weight", "model.layers.{l}.self_attn.o_proj.weight"}, {}},
    .mlp_norm = {},
    .gate = {{"blk.{l}.ffn_gate.weight", "model.layers.{l}.mlp.gate_proj.weight"}, {}},
    .up = {{"blk.{l}.ffn_up.weight", "model.layers.{l}.mlp.up_proj.weight"}, {}},
    .down = {{"blk.{l}.ffn_down.weight", "model.layers.{l}.mlp.down_proj.weight"}, {}},
    .q_norm = {"blk.{l}.attn_q_norm.weight", "model.layers.{l}.self_attn.q_norm.weight"},
    .k_norm = {"blk.{l}.attn_k_norm.weight", "model.layers.{l}.self_attn.k_norm.weight"},
    .norms_whole_rows = true,
    .post_attention_norm = {"blk.{l}.post_attention_norm.weight",
                            "model.layers.{l}.post_attention_layernorm.weight"},
    .post_mlp_norm = {"blk.{l}.post_ffw_norm.weight",
                      "model.layers.{l}.post_feedforward_layernorm.weight"},
    .reads_window = true,
    .rope = {.hugging_face_section = "full_attention"},
};

class Olmo2 final : public Transformer {
 public:
  Olmo2(Decoder model, LocalLayers layers, ops::Rope local_rope)
      : model_(std::move(model)), local_(std::move(layers)), local_rope_(std::move(local_rope)) {
    local_attention_ = model_.attention;
    local_attention_.window = local_.window;
  }

  static Result<std::unique_ptr<Transformer>> load(const Metadata& metadata, WeightSource& source) {
    CUTAWAY_SPAN(span, "arch::Olmo2::load");
    const ConfigReader config(metadata);
    CUTAWAY_ASSIGN(Decoder model, load_decoder(kRows, metadata, source));
    CUTAWAY_ASSIGN(LocalLayers layers, read_local_layers(config, model.shape, 0, 4));
    CUTAWAY_ASSIGN(const ops::RopeConfig scaled, config.rope(model.shape.d_head, kRows.rope));
    ops::RopeConfig local;
    local.n_rot = scaled.n_rot;
    local.theta = scaled.theta;
    CUTAWAY_OUT(span, "layers", model.shape.n_layers, "vocab", model.shape.vocab);
    return std::unique_ptr<Transformer>(
        std::make_unique<Olmo2>(std::move(model), std::move(layers), ops::Rope(local)));
  }

  const ModelShape& shape() const override { return model_.shape; }
  Products products() const override { return decoder_products(model_); }

  ops::Rows forward(ops::Pass& pass) const override {
    CUTAWAY_SPAN(span, "arch::Olmo2::forward", "rows", pass.rows());
    const Decoder& m = model_;
    const ops::Rows x = ops::embed(pass, m.embedding);  // the residual stream, {rows, d_model}
    const ops::Rope::Angles global_angles = m.rope.angles(pass);
    const ops::Rope::Angles local_angles = local_rope_.angles(pass);
    for (int layer = 0; layer < static_cast<int>(m.shape.n_layers); ++layer) {
      const LayerScope scope(pass, layer);
      const auto index = static_cast<size_t>(layer);
      const DecoderLayer& w = m.layers[index];
      const bool local = local_.local[index];

      const ops::Rows attended =
          ops::self_attention(pass, layer, local ? local_attention_ : m.attention, w.attention,
                              local ? local_rope_ : m.rope, local ? local_angles : global_angles,
                              ops::read_residual(pass, layer, x));
      ops::Input normalized =
          ops::rms_norm(pass, ops::kPostNorm1, layer, attended, w.post_attention_norm, m.eps);
      ops::add_residual(pass, ops::kAfterAttention, layer, x, normalized.floats);

      const ops::Rows transformed = ops::gated_mlp(pass, layer, w.mlp, x);
      normalized = ops::rms_norm(pass, ops::kNorm2, layer, transformed, w.post_mlp_norm, m.eps);
      ops::add_residual(pass, ops::kAfterMlp, layer, x, normalized.floats);
    }
    const ops::Rows logits = unembed(pass, x);
    CUTAWAY_OUT(span, "logits", logits.view());
    return logits;
  }

  ops::Rows unembed(ops::Pass& pass, const ops::Rows& x) const override {
    CUTAWAY_SPAN(span, "arch::Olmo2::unembed", "x", x.view());
    const ops::Rows logits = ops::unembed(pass, x, model_.final_norm, model_.eps, model_.head);
    CUTAWAY_OUT(span, "logits", logits.view());
    return logits;
  }

 private:
  Decoder model_;
  LocalLayers local_;
  ops::AttentionShape local_attention_;
  ops::Rope local_rope_;
};

std::vector<Metadata> tiny_configs() {
  std::vector<Metadata> configs;
  const auto add = [&](TinyConfig tiny) -> Metadata& {
    return configs.emplace_back(tiny_decoder_metadata("olmo2", tiny));
  };
  add({});
  add({.n_heads = 3, .n_kv_heads = 1, .d_head = 40, .d_model = 120});
  Metadata& local = add({.n_layers = 5, .n_heads = 4, .n_kv_heads = 4, .rope_scaling = "yarn"});
  local.insert("olmo2.attention.sliding_window", int64_t{24});
  return configs;
}

// As published with the weights.
std::vector<PublishedShape> published_shapes() {
  // layers, d_model, heads, KV heads, d_head, d_mlp, vocabulary, context, theta, eps, tied
  constexpr DecoderFacts kFacts[] = {
      {"olmo-2-1b", 16, 2048, 16, 16, 128, 8192, 100352, 4096, 5e5, 1e-6f, false},
      {"olmo-2-7b", 32, 4096, 32, 32, 128, 11008, 100352, 4096, 5e5, 1e-6f, false},
  };
  std::vector<PublishedShape> shapes;
  for (const DecoderFacts& facts : kFacts) shapes.push_back(published_decoder("olmo2", facts));
  return shapes;
}

}  // namespace

extern const Architecture kOlmo2;
const Architecture kOlmo2{"olmo2", &Olmo2::load, &tiny_configs, &published_shapes};

}  // namespace cutaway::arch
