// Qwen3's dense models (arXiv:2505.09388): q and k are normed head by head before rotation, heads
// have a size of their own, and nothing has a bias. The published configurations carry a sliding
// window and switch it off.

#include "arch/config.h"
#include "arch/decoder.h"
#include "arch/published.h"
#include "trace/trace.h"

namespace cutaway::arch {
namespace {

constexpr DecoderRows kRows{
    .embedding = {"token_embd.weight", "model.embed_tokens.weight"},
    .final_norm = {"output_norm.weight", "model.norm.weight"},
    .head = {"output.weight", "lm_head.weight", Transform::kNone, true},
    .rope_divisors = {},
    .attention_norm = {"blk.{l}.attn_norm.weight", "model.layers.{l}.input_layernorm.weight"},
    .q = {{"blk.{l}.attn_q.weight", "model.layers.{l}.self_attn.q_proj.weight"}, {}},
    .k = {{"blk.{l}.attn_k.weight", "model.layers.{l}.self_attn.k_proj.weight"}, {}},
    .v = {{"blk.{l}.attn_v.weight", "model.layers.{l}.self_attn.v_proj.weight"}, {}},
    .o = {{"blk.{l}.attn_output.weight", "model.layers.{l}.self_attn.o_proj.weight"}, {}},
    .mlp_norm = {"blk.{l}.ffn_norm.weight", "model.layers.{l}.post_attention_layernorm.weight"},
    .gate = {{"blk.{l}.ffn_gate.weight", "model.layers.{l}.mlp.gate_proj.weight"}, {}},
    .up = {{"blk.{l}.ffn_up.weight", "model.layers.{l}.mlp.up_proj.weight"}, {}},
    .down = {{"blk.{l}.ffn_down.weight", "model.layers.{l}.mlp.down_proj.weight"}, {}},
    .q_norm = {"blk.{l}.attn_q_norm.weight", "model.layers.{l}.self_attn.q_norm.weight"},
    .k_norm = {"blk.{l}.attn_k_norm.weight", "model.layers.{l}.self_attn.k_norm.weight"},
};

class Qwen3 final : public Transformer {
 public:
  explicit Qwen3(Decoder model) : model_(std::move(model)) {}

  static Result<std::unique_ptr<Transformer>> load(const Metadata& metadata, WeightSource& source) {
    CUTAWAY_SPAN(span, "arch::Qwen3::load");
    CUTAWAY_ASSIGN(Decoder model, load_decoder(kRows, metadata, source));
    CUTAWAY_OUT(span, "layers", model.shape.n_layers, "vocab", model.shape.vocab);
    return std::unique_ptr<Transformer>(std::make_unique<Qwen3>(std::move(model)));
  }

  const ModelShape& shape() const override { return model_.shape; }
  Products products() const override { return decoder_products(model_); }

  ops::Rows forward(ops::Pass& pass) const override {
    CUTAWAY_SPAN(span, "arch::Qwen3::forward", "rows", pass.rows());
    const Decoder& m = model_;
    const ops::Rows x = ops::embed(pass, m.embedding);  // the residual stream, {rows, d_model}
    const ops::Rope::Angles angles = m.rope.angles(pass);
    for (int layer = 0; layer < static_cast<int>(m.shape.n_layers); ++layer) {
      const LayerScope scope(pass, layer);
      const DecoderLayer& w = m.layers[static_cast<size_t>(layer)];

      ops::Input normalized = ops::rms_norm(pass, ops::kNorm1, layer, x, w.attention_norm, m.eps,
                                            w.attention.readers());
      ops::self_attention_onto(pass, layer, m.attention, w.attention, m.rope, angles, normalized,
                               x);

      normalized = ops::rms_norm(pass, ops::kNorm2, layer, x, w.mlp_norm, m.eps, w.mlp.readers());
      ops::gated_mlp_onto(pass, layer, w.mlp, normalized, x);
    }
    const ops::Rows logits = unembed(pass, x);
    CUTAWAY_OUT(span, "logits", logits.view());
    return logits;
  }

  ops::Rows unembed(ops::Pass& pass, const ops::Rows& x) const override {
    CUTAWAY_SPAN(span, "arch::Qwen3::unembed", "x", x.view());
    const ops::Rows logits = ops::unembed(pass, x, model_.final_norm, model_.eps, model_.head);
    CUTAWAY_OUT(span, "logits", logits.view());
    return logits;
  }

 private:
  Decoder model_;
};

std::vector<Metadata> tiny_configs() {
  std::vector<Metadata> configs;
  const auto add = [&](TinyConfig tiny) {
    configs.push_back(tiny_decoder_metadata("qwen3", tiny));
  };
  add({});
  add({.n_heads = 3, .n_kv_heads = 1, .d_head = 40, .d_model = 64});
  add({.n_heads = 4, .n_kv_heads = 4, .d_head = 24, .rope_scaling = "yarn"});
  return configs;
}

// As published with the weights.
std::vector<PublishedShape> published_shapes() {
  // layers, d_model, heads, KV heads, d_head, d_mlp, vocabulary, context, theta, eps, tied
  constexpr DecoderFacts kFacts[] = {
      {"qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, 40960, 1e6, 1e-6f, true},
      {"qwen3-4b", 36, 2560, 32, 8, 128, 9728, 151936, 40960, 1e6, 1e-6f, true},
      {"qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, 40960, 1e6, 1e-6f, false},
  };
  std::vector<PublishedShape> shapes;
  for (const DecoderFacts& facts : kFacts) shapes.push_back(published_decoder("qwen3", facts));
  return shapes;
}

}  // namespace

extern const Architecture kQwen3;
const Architecture kQwen3{"qwen3", &Qwen3::load, &tiny_configs, &published_shapes};

}  // namespace cutaway::arch
