// Qwen1.5-MoE and Qwen2-57B-A14B (arXiv:2407.10671): qwen2's attention, many small experts, and one
// shared expert with a gate of its own. The chosen experts' weights keep their share of the
// softmax.

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
    .q = {{"blk.{l}.attn_q.weight", "model.layers.{l}.self_attn.q_proj.weight"},
          {"blk.{l}.attn_q.bias", "model.layers.{l}.self_attn.q_proj.bias"}},
    .k = {{"blk.{l}.attn_k.weight", "model.layers.{l}.self_attn.k_proj.weight"},
          {"blk.{l}.attn_k.bias", "model.layers.{l}.self_attn.k_proj.bias"}},
    .v = {{"blk.{l}.attn_v.weight", "model.layers.{l}.self_attn.v_proj.weight"},
          {"blk.{l}.attn_v.bias", "model.layers.{l}.self_attn.v_proj.bias"}},
    .o = {{"blk.{l}.attn_output.weight", "model.layers.{l}.self_attn.o_proj.weight"}, {}},
    .mlp_norm = {"blk.{l}.ffn_norm.weight", "model.layers.{l}.post_attention_layernorm.weight"},
    .gate = {},
    .up = {},
    .down = {},
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
    .normalize = false,
    .shared_weight = {"blk.{l}.ffn_gate_inp_shexp.weight",
                      "model.layers.{l}.mlp.shared_expert_gate.weight", Transform::kNone, false, 0,
                      0, true},
    .shared_gate = {"blk.{l}.ffn_gate_shexp.weight",
                    "model.layers.{l}.mlp.shared_expert.gate_proj.weight"},
    .shared_up = {"blk.{l}.ffn_up_shexp.weight",
                  "model.layers.{l}.mlp.shared_expert.up_proj.weight"},
    .shared_down = {"blk.{l}.ffn_down_shexp.weight",
                    "model.layers.{l}.mlp.shared_expert.down_proj.weight"},
};

class Qwen2Moe final : public Transformer {
 public:
  explicit Qwen2Moe(Decoder model) : model_(std::move(model)) {}

  static Result<std::unique_ptr<Transformer>> load(const Metadata& metadata, WeightSource& source) {
    CUTAWAY_SPAN(span, "arch::Qwen2Moe::load");
    CUTAWAY_ASSIGN(Decoder model, load_decoder(kRows, metadata, source, &kExperts));
    CUTAWAY_OUT(span, "layers", model.shape.n_layers, "experts", model.shape.n_experts, "vocab",
                model.shape.vocab);
    return std::unique_ptr<Transformer>(std::make_unique<Qwen2Moe>(std::move(model)));
  }

  const ModelShape& shape() const override { return model_.shape; }
  Products products() const override { return decoder_products(model_); }

  ops::Rows forward(ops::Pass& pass) const override {
    CUTAWAY_SPAN(span, "arch::Qwen2Moe::forward", "rows", pass.rows());
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
    CUTAWAY_SPAN(span, "arch::Qwen2Moe::unembed", "x", x.view());
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
    configs.push_back(tiny_decoder_metadata("qwen2moe", tiny));
  };
  add({.n_experts = 6, .n_experts_used = 2, .d_expert = 64, .d_shared = 96});
  add({.n_heads = 7,
       .n_kv_heads = 1,
       .d_model = 112,
       .n_experts = 17,
       .n_experts_used = 4,
       .d_expert = 32,
       .d_shared = 40});
  add({.rope_scaling = "yarn", .n_experts = 3, .n_experts_used = 3, .d_expert = 40});
  configs.back().insert("qwen2moe.expert_weights_norm", true);
  return configs;
}

// As published with the weights.
std::vector<PublishedShape> published_shapes() {
  // layers, d_model, heads, KV heads, d_head, d_mlp, vocabulary, context, theta, eps, tied
  constexpr DecoderFacts kFacts[] = {
      {"qwen1.5-moe-a2.7b",
       24,
       2048,
       16,
       16,
       128,
       5632,
       151936,
       8192,
       1e6,
       1e-6f,
       false,
       {},
       {60, 4, 1408, 5632}},
  };
  std::vector<PublishedShape> shapes;
  for (const DecoderFacts& facts : kFacts) shapes.push_back(published_decoder("qwen2moe", facts));
  return shapes;
}

}  // namespace

extern const Architecture kQwen2Moe;
const Architecture kQwen2Moe{"qwen2moe", &Qwen2Moe::load, &tiny_configs, &published_shapes};

}  // namespace cutaway::arch
