// Qwen3's mixtures (arXiv:2505.09388), such as Qwen3-30B-A3B: qwen3's attention, many small
// experts, no shared one; the chosen experts' weights sum to 1.

#include "arch/config.h"
#include "arch/decoder.h"
#include "arch/published.h"
#include "ops/moe.h"
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
    .gate = {},
    .up = {},
    .down = {},
    .q_norm = {"blk.{l}.attn_q_norm.weight", "model.layers.{l}.self_attn.q_norm.weight"},
    .k_norm = {"blk.{l}.attn_k_norm.weight", "model.layers.{l}.self_attn.k_norm.weight"},
};

constexpr MoeRows kExperts{
    .router = {"blk.{l}.ffn_gate_inp.weight", "model.layers.{l}.mlp.gate.weight", Transform::kNone,
               false, 0, 0, true},
    .gate = {"blk.{l}.ffn_gate_exps.weight", "", "blk.{l}.ffn_gate.{e}.weight",
             "model.layers.{l}.mlp.experts.{e}.gate_proj.weight", "blk.{l}.ffn_gate_up_exps.weight",
             "model.layers.{l}.mlp.experts.gate_up_proj", 0},
    .up = {"blk.{l}.ffn_up_exps.weight", "", "blk.{l}.ffn_up.{e}.weight",
           "model.layers.{l}.mlp.experts.{e}.up_proj.weight", "blk.{l}.ffn_gate_up_exps.weight",
           "model.layers.{l}.mlp.experts.gate_up_proj", 1},
    .down = {"blk.{l}.ffn_down_exps.weight", "model.layers.{l}.mlp.experts.down_proj",
             "blk.{l}.ffn_down.{e}.weight", "model.layers.{l}.mlp.experts.{e}.down_proj.weight", "",
             ""},
    .normalize = true,
};

class Qwen3Moe final : public Transformer {
 public:
  explicit Qwen3Moe(Decoder model) : model_(std::move(model)) {}

  static Result<std::unique_ptr<Transformer>> load(const Metadata& metadata, WeightSource& source) {
    CUTAWAY_SPAN(span, "arch::Qwen3Moe::load");
    CUTAWAY_ASSIGN(Decoder model, load_decoder(kRows, metadata, source, &kExperts));
    CUTAWAY_OUT(span, "layers", model.shape.n_layers, "experts", model.shape.n_experts, "vocab",
                model.shape.vocab);
    return std::unique_ptr<Transformer>(std::make_unique<Qwen3Moe>(std::move(model)));
  }

  const ModelShape& shape() const override { return model_.shape; }
  Products products() const override { return decoder_products(model_); }

  ops::Rows forward(ops::Pass& pass) const override {
    CUTAWAY_SPAN(span, "arch::Qwen3Moe::forward", "rows", pass.rows());
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

      normalized = ops::rms_norm(pass, ops::kNorm2, layer, x, w.mlp_norm, m.eps, w.moe.readers());
      ops::moe_onto(pass, layer, w.moe, normalized, x);
    }
    const ops::Rows logits = unembed(pass, x);
    CUTAWAY_OUT(span, "logits", logits.view());
    return logits;
  }

  ops::Rows unembed(ops::Pass& pass, const ops::Rows& x) const override {
    CUTAWAY_SPAN(span, "arch::Qwen3Moe::unembed", "x", x.view());
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
    configs.push_back(tiny_decoder_metadata("qwen3moe", tiny));
  };
  add({.n_experts = 16, .n_experts_used = 8, .d_expert = 32});
  add({.n_heads = 3,
       .n_kv_heads = 1,
       .d_head = 40,
       .rope_scaling = "yarn",
       .n_experts = 1,
       .n_experts_used = 1,
       .d_expert = 96});
  add({.n_experts = 7, .n_experts_used = 3, .d_expert = 64});
  configs.back().insert("qwen3moe.expert_weights_norm", false);
  return configs;
}

// As published with the weights.
std::vector<PublishedShape> published_shapes() {
  // layers, d_model, heads, KV heads, d_head, d_mlp, vocabulary, context, theta, eps, tied
  constexpr DecoderFacts kFacts[] = {
      {"qwen3-30b-a3b",
       48,
       2048,
       32,
       4,
       128,
       6144,
       151936,
       40960,
       1e6,
       1e-6f,
       false,
       {},
       {128, 8, 768}},
  };
  std::vector<PublishedShape> shapes;
  for (const DecoderFacts& facts : kFacts) shapes.push_back(published_decoder("qwen3moe", facts));
  return shapes;
}

}  // namespace

extern const Architecture kQwen3Moe;
const Architecture kQwen3Moe{"qwen3moe", &Qwen3Moe::load, &tiny_configs, &published_shapes};

}  // namespace cutaway::arch
