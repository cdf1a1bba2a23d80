// Llama (Touvron et al. 2023, arXiv:2302.13971; Llama 3: arXiv:2407.21783) and its kin: SmolLM2,
// Mistral without a window, TinyLlama.

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
    .gate = {{"blk.{l}.ffn_gate.weight", "model.layers.{l}.mlp.gate_proj.weight"},
             {"blk.{l}.ffn_gate.bias", "model.layers.{l}.mlp.gate_proj.bias", Transform::kNone,
              true}},
    .up = {{"blk.{l}.ffn_up.weight", "model.layers.{l}.mlp.up_proj.weight"},
           {"blk.{l}.ffn_up.bias", "model.layers.{l}.mlp.up_proj.bias", Transform::kNone, true}},
    .down = {{"blk.{l}.ffn_down.weight", "model.layers.{l}.mlp.down_proj.weight"},
             {"blk.{l}.ffn_down.bias", "model.layers.{l}.mlp.down_proj.bias", Transform::kNone,
              true}},
};

class Llama final : public Transformer {
 public:
  explicit Llama(Decoder model) : model_(std::move(model)) {}

  static Result<std::unique_ptr<Transformer>> load(const Metadata& metadata, WeightSource& source) {
    CUTAWAY_SPAN(span, "arch::Llama::load");
    CUTAWAY_ASSIGN(Decoder model, load_decoder(kRows, metadata, source));
    CUTAWAY_OUT(span, "layers", model.shape.n_layers, "vocab", model.shape.vocab);
    return std::unique_ptr<Transformer>(std::make_unique<Llama>(std::move(model)));
  }

  const ModelShape& shape() const override { return model_.shape; }
  Products products() const override { return decoder_products(model_); }

  ops::Rows forward(ops::Pass& pass) const override {
    CUTAWAY_SPAN(span, "arch::Llama::forward", "rows", pass.rows());
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
    CUTAWAY_SPAN(span, "arch::Llama::unembed", "x", x.view());
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
    configs.push_back(tiny_decoder_metadata("llama", tiny));
  };
  add({});
  add({.n_heads = 9, .n_kv_heads = 3, .d_head = 24, .d_model = 96});
  add({.n_heads = 4, .n_kv_heads = 1, .d_head = 40, .rope_scaling = "linear"});
  add({.n_heads = 2, .n_kv_heads = 2, .d_head = 16, .rope_scaling = "yarn"});
  return configs;
}

// As published with the weights; mistral-7b is v0.3, which has no sliding window.
std::vector<PublishedShape> published_shapes() {
  constexpr Llama3Scaling kBy8{.factor = 8}, kBy32{.factor = 32};
  // layers, d_model, heads, KV heads, d_head, d_mlp, vocabulary, context, theta, eps, tied
  constexpr DecoderFacts kFacts[] = {
      {"smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5, 1e-5f, true},
      {"smollm2-360m", 32, 960, 15, 5, 64, 2560, 49152, 8192, 1e5, 1e-5f, true},
      {"smollm2-1.7b", 24, 2048, 32, 32, 64, 8192, 49152, 8192, 1.3e5, 1e-5f, true},
      {"tinyllama-1.1b", 22, 2048, 32, 4, 64, 5632, 32000, 2048, 1e4, 1e-5f, false},
      {"llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 5e5, 1e-5f, true, kBy32},
      {"llama-3.2-3b", 28, 3072, 24, 8, 128, 8192, 128256, 131072, 5e5, 1e-5f, true, kBy32},
      {"llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072, 5e5, 1e-5f, false, kBy8},
      {"llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, 4096, 1e4, 1e-5f, false},
      {"mistral-7b", 32, 4096, 32, 8, 128, 14336, 32768, 32768, 1e6, 1e-5f, false},
  };
  std::vector<PublishedShape> shapes;
  for (const DecoderFacts& facts : kFacts) shapes.push_back(published_decoder("llama", facts));
  return shapes;
}

}  // namespace

extern const Architecture kLlama;
const Architecture kLlama{"llama", &Llama::load, &tiny_configs, &published_shapes};

}  // namespace cutaway::arch
