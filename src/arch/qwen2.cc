// Qwen2 and Qwen2.5 (arXiv:2407.10671, arXiv:2412.15115): biases on q, k and v, rows of a head in
// halves. The published configurations carry a sliding window and switch it off.

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
    .q = {{"blk.{l}.attn_q.weight", "model.layers.{l}.self_attn.q_proj.weight"},
          {"blk.{l}.attn_q.bias", "model.layers.{l}.self_attn.q_proj.bias"}},
    .k = {{"blk.{l}.attn_k.weight", "model.layers.{l}.self_attn.k_proj.weight"},
          {"blk.{l}.attn_k.bias", "model.layers.{l}.self_attn.k_proj.bias"}},
    .v = {{"blk.{l}.attn_v.weight", "model.layers.{l}.self_attn.v_proj.weight"},
          {"blk.{l}.attn_v.bias", "model.layers.{l}.self_attn.v_proj.bias"}},
    .o = {{"blk.{l}.attn_output.weight", "model.layers.{l}.self_attn.o_proj.weight"}, {}},
    .mlp_norm = {"blk.{l}.ffn_norm.weight", "model.layers.{l}.post_attention_layernorm.weight"},
    .gate = {{"blk.{l}.ffn_gate.weight", "model.layers.{l}.mlp.gate_proj.weight"}, {}},
    .up = {{"blk.{l}.ffn_up.weight", "model.layers.{l}.mlp.up_proj.weight"}, {}},
    .down = {{"blk.{l}.ffn_down.weight", "model.layers.{l}.mlp.down_proj.weight"}, {}},
};

class Qwen2 final : public Transformer {
 public:
  explicit Qwen2(Decoder model) : model_(std::move(model)) {}

  static Result<std::unique_ptr<Transformer>> load(const Metadata& metadata, WeightSource& source) {
    CUTAWAY_SPAN(span, "arch::Qwen2::load");
    CUTAWAY_ASSIGN(Decoder model, load_decoder(kRows, metadata, source));
    CUTAWAY_OUT(span, "layers", model.shape.n_layers, "vocab", model.shape.vocab);
    return std::unique_ptr<Transformer>(std::make_unique<Qwen2>(std::move(model)));
  }

  const ModelShape& shape() const override { return model_.shape; }
  Products products() const override { return decoder_products(model_); }

  ops::Rows forward(ops::Pass& pass) const override {
    CUTAWAY_SPAN(span, "arch::Qwen2::forward", "rows", pass.rows());
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
    CUTAWAY_SPAN(span, "arch::Qwen2::unembed", "x", x.view());
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
    configs.push_back(tiny_decoder_metadata("qwen2", tiny));
  };
  add({});
  add({.n_heads = 7, .n_kv_heads = 1, .d_head = 16, .d_model = 112});
  add({.n_heads = 4, .n_kv_heads = 2, .d_head = 16, .rope_scaling = "yarn"});
  return configs;
}

// As published with the weights of Qwen2.5.
std::vector<PublishedShape> published_shapes() {
  // layers, d_model, heads, KV heads, d_head, d_mlp, vocabulary, context, theta, eps, tied
  constexpr DecoderFacts kFacts[] = {
      {"qwen2.5-0.5b", 24, 896, 14, 2, 64, 4864, 151936, 32768, 1e6, 1e-6f, true},
      {"qwen2.5-1.5b", 28, 1536, 12, 2, 128, 8960, 151936, 32768, 1e6, 1e-6f, true},
      {"qwen2.5-3b", 36, 2048, 16, 2, 128, 11008, 151936, 32768, 1e6, 1e-6f, true},
      {"qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, 131072, 1e6, 1e-6f, false},
  };
  std::vector<PublishedShape> shapes;
  for (const DecoderFacts& facts : kFacts) shapes.push_back(published_decoder("qwen2", facts));
  return shapes;
}

}  // namespace

extern const Architecture kQwen2;
const Architecture kQwen2{"qwen2", &Qwen2::load, &tiny_configs, &published_shapes};

}  // namespace cutaway::arch
