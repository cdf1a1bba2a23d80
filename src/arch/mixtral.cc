// Mixtral (Jiang et al. 2024, arXiv:2401.04088): Llama with experts. GGUF files carry Llama's name
// and a count of experts. Published without a sliding window.

#include "arch/config.h"
#include "arch/decoder.h"
#include "arch/published.h"
#include "ops/moe.h"
#include "trace/trace.h"

namespace cutaway::arch {

extern const Architecture kLlama;

namespace {

constexpr DecoderRows kRows{
    .embedding = {"token_embd.weight", "model.embed_tokens.weight"},
    .final_norm = {"output_norm.weight", "model.norm.weight"},
    .head = {"output.weight", "lm_head.weight", Transform::kNone, true},
    .rope_divisors = {"rope_freqs.weight", "", Transform::kNone, true},
    .attention_norm = {"blk.{l}.attn_norm.weight", "model.layers.{l}.input_layernorm.weight"},
    .q = {{"blk.{l}.attn_q.weight", "model.layers.{l}.self_attn.q_proj.weight",
           Transform::kRopePairs},
          {"blk.{l}.attn_q.bias", "model.layers.{l}.self_attn.q_proj.bias", Transform::kRopePairs,
           true}},
    .k = {{"blk.{l}.attn_k.weight", "model.layers.{l}.self_attn.k_proj.weight",
           Transform::kRopePairs},
          {"blk.{l}.attn_k.bias", "model.layers.{l}.self_attn.k_proj.bias", Transform::kRopePairs,
           true}},
    .v = {{"blk.{l}.attn_v.weight", "model.layers.{l}.self_attn.v_proj.weight"},
          {"blk.{l}.attn_v.bias", "model.layers.{l}.self_attn.v_proj.bias", Transform::kNone,
           true}},
    .o = {{"blk.{l}.attn_output.weight", "model.layers.{l}.self_attn.o_proj.weight"},
          {"blk.{l}.attn_output.bias", "model.layers.{l}.self_attn.o_proj.bias", Transform::kNone,
           true}},
    .mlp_norm = {"blk.{l}.ffn_norm.weight", "model.layers.{l}.post_attention_layernorm.weight"},
    .gate = {},
    .up = {},
    .down = {},
};

// One an expert: in GGUF files from before experts were stacked, in Hugging Face's from before
// transformers 5.
constexpr MoeRows kExperts{
    .router = {"blk.{l}.ffn_gate_inp.weight", "model.layers.{l}.block_sparse_moe.gate.weight",
               Transform::kNone, false, 0, 0, true},
    .gate = {"blk.{l}.ffn_gate_exps.weight", "", "blk.{l}.ffn_gate.{e}.weight",
             "model.layers.{l}.block_sparse_moe.experts.{e}.w1.weight",
             "blk.{l}.ffn_gate_up_exps.weight", "model.layers.{l}.mlp.experts.gate_up_proj", 0},
    .up = {"blk.{l}.ffn_up_exps.weight", "", "blk.{l}.ffn_up.{e}.weight",
           "model.layers.{l}.block_sparse_moe.experts.{e}.w3.weight",
           "blk.{l}.ffn_gate_up_exps.weight", "model.layers.{l}.mlp.experts.gate_up_proj", 1},
    .down = {"blk.{l}.ffn_down_exps.weight", "model.layers.{l}.mlp.experts.down_proj",
             "blk.{l}.ffn_down.{e}.weight",
             "model.layers.{l}.block_sparse_moe.experts.{e}.w2.weight", "", ""},
    .normalize = true,
};

class Mixtral final : public Transformer {
 public:
  explicit Mixtral(Decoder model) : model_(std::move(model)) {}

  static Result<std::unique_ptr<Transformer>> load(const Metadata& metadata, WeightSource& source) {
    CUTAWAY_SPAN(span, "arch::Mixtral::load");
    CUTAWAY_ASSIGN(Decoder model, load_decoder(kRows, metadata, source, &kExperts));
    CUTAWAY_OUT(span, "layers", model.shape.n_layers, "experts", model.shape.n_experts, "vocab",
                model.shape.vocab);
    return std::unique_ptr<Transformer>(std::make_unique<Mixtral>(std::move(model)));
  }

  const ModelShape& shape() const override { return model_.shape; }
  Products products() const override { return decoder_products(model_); }

  ops::Rows forward(ops::Pass& pass) const override {
    CUTAWAY_SPAN(span, "arch::Mixtral::forward", "rows", pass.rows());
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
    CUTAWAY_SPAN(span, "arch::Mixtral::unembed", "x", x.view());
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
    configs.push_back(tiny_decoder_metadata(kLlama.name, tiny));
  };
  add({.n_experts = 8, .n_experts_used = 2});
  add({.n_heads = 9,
       .n_kv_heads = 3,
       .d_head = 24,
       .d_model = 96,
       .d_mlp = 40,
       .n_experts = 5,
       .n_experts_used = 1});
  return configs;
}

// As published with the weights.
std::vector<PublishedShape> published_shapes() {
  // layers, d_model, heads, KV heads, d_head, d_mlp, vocabulary, context, theta, eps, tied
  constexpr DecoderFacts kFacts[] = {
      {"mixtral-8x7b", 32, 4096, 32, 8, 128, 14336, 32000, 32768, 1e6, 1e-5f, false, {}, {8, 2}},
  };
  std::vector<PublishedShape> shapes;
  for (const DecoderFacts& facts : kFacts) shapes.push_back(published_decoder(kLlama.name, facts));
  return shapes;
}

bool claims(const Metadata& metadata) {
  const auto name = metadata.string("general.architecture");
  if (!name.ok() || *name != kLlama.name) return false;
  const auto experts = metadata.integer_or(*name + ".expert_count", 0, 0, INT64_MAX);
  return experts.ok() && *experts > 0;
}

}  // namespace

extern const Architecture kMixtral;
const Architecture kMixtral{"mixtral", &Mixtral::load, &tiny_configs, &published_shapes, &claims};

}  // namespace cutaway::arch
