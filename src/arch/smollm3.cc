// SmolLM3 (Hugging Face, 2025): Llama, but every fourth layer does not rotate q and k ("NoPE",
// arXiv:2501.18795): its heads find by content alone.

#include "arch/config.h"
#include "arch/decoder.h"
#include "arch/published.h"
#include "trace/trace.h"

namespace cutaway::arch {
namespace {

constexpr Transform kPairs = Transform::kRopePairs;

constexpr DecoderRows kRows{
    .embedding = {"token_embd.weight", "model.embed_tokens.weight"},
    .final_norm = {"output_norm.weight", "model.norm.weight"},
    .head = {"output.weight", "lm_head.weight", Transform::kNone, true},
    .rope_divisors = {},
    .attention_norm = {"blk.{l}.attn_norm.weight", "model.layers.{l}.input_layernorm.weight"},
    .q = {{"blk.{l}.attn_q.weight", "model.layers.{l}.self_attn.q_proj.weight", kPairs}, {}},
    .k = {{"blk.{l}.attn_k.weight", "model.layers.{l}.self_attn.k_proj.weight", kPairs}, {}},
    .v = {{"blk.{l}.attn_v.weight", "model.layers.{l}.self_attn.v_proj.weight"}, {}},
    .o = {{"blk.{l}.attn_output.weight", "model.layers.{l}.self_attn.o_proj.weight"}, {}},
    .mlp_norm = {"blk.{l}.ffn_norm.weight", "model.layers.{l}.post_attention_layernorm.weight"},
    .gate = {{"blk.{l}.ffn_gate.weight", "model.layers.{l}.mlp.gate_proj.weight"}, {}},
    .up = {{"blk.{l}.ffn_up.weight", "model.layers.{l}.mlp.up_proj.weight"}, {}},
    .down = {{"blk.{l}.ffn_down.weight", "model.layers.{l}.mlp.down_proj.weight"}, {}},
};

// Which layers rotate: Hugging Face says it layer by layer or by the interval, GGUF files have 4.
Result<std::vector<bool>> read_rotating_layers(const ConfigReader& config, int64_t n_layers) {
  const Metadata& metadata = config.metadata();
  std::vector<bool> out;
  if (metadata.has("no_rope_layers")) {  // 1: the layer rotates
    CUTAWAY_ASSIGN(const std::vector<int64_t> flags, metadata.integers("no_rope_layers"));
    if (static_cast<int64_t>(flags.size()) != n_layers) {
      return Error{ErrorCode::kInvalidFile,
                   "metadata no_rope_layers has " + std::to_string(flags.size()) +
                       " values, expected one for each of " + std::to_string(n_layers) + " layers",
                   "no_rope_layers"};
    }
    for (const int64_t flag : flags) out.push_back(flag != 0);
    return out;
  }
  CUTAWAY_ASSIGN(const int64_t interval,
                 metadata.integer_or("no_rope_layer_interval", 4, 1, INT32_MAX));
  for (int64_t layer = 0; layer < n_layers; ++layer) out.push_back((layer + 1) % interval != 0);
  return out;
}

class SmolLm3 final : public Transformer {
 public:
  SmolLm3(Decoder model, std::vector<bool> rotates)
      : model_(std::move(model)), rotates_(std::move(rotates)) {}

  static Result<std::unique_ptr<Transformer>> load(const Metadata& metadata, WeightSource& source) {
    CUTAWAY_SPAN(span, "arch::SmolLm3::load");
    const ConfigReader config(metadata);
    CUTAWAY_ASSIGN(Decoder model, load_decoder(kRows, metadata, source));
    CUTAWAY_ASSIGN(std::vector<bool> rotates, read_rotating_layers(config, model.shape.n_layers));
    CUTAWAY_OUT(span, "layers", model.shape.n_layers, "vocab", model.shape.vocab);
    return std::unique_ptr<Transformer>(
        std::make_unique<SmolLm3>(std::move(model), std::move(rotates)));
  }

  const ModelShape& shape() const override { return model_.shape; }
  Products products() const override { return decoder_products(model_); }

  ops::Rows forward(ops::Pass& pass) const override {
    CUTAWAY_SPAN(span, "arch::SmolLm3::forward", "rows", pass.rows());
    const Decoder& m = model_;
    const ops::Rows x = ops::embed(pass, m.embedding);  // the residual stream, {rows, d_model}
    const ops::Rope none;
    const ops::Rope::Angles angles = m.rope.angles(pass);
    for (int layer = 0; layer < static_cast<int>(m.shape.n_layers); ++layer) {
      const LayerScope scope(pass, layer);
      const auto index = static_cast<size_t>(layer);
      const DecoderLayer& w = m.layers[index];

      ops::Input normalized = ops::rms_norm(pass, ops::kNorm1, layer, x, w.attention_norm, m.eps,
                                            w.attention.readers());
      ops::self_attention_onto(pass, layer, m.attention, w.attention,
                               rotates_[index] ? m.rope : none, angles, normalized, x);

      normalized = ops::rms_norm(pass, ops::kNorm2, layer, x, w.mlp_norm, m.eps, w.mlp.readers());
      ops::gated_mlp_onto(pass, layer, w.mlp, normalized, x);
    }
    const ops::Rows logits = unembed(pass, x);
    CUTAWAY_OUT(span, "logits", logits.view());
    return logits;
  }

  ops::Rows unembed(ops::Pass& pass, const ops::Rows& x) const override {
    CUTAWAY_SPAN(span, "arch::SmolLm3::unembed", "x", x.view());
    const ops::Rows logits = ops::unembed(pass, x, model_.final_norm, model_.eps, model_.head);
    CUTAWAY_OUT(span, "logits", logits.view());
    return logits;
  }

 private:
  Decoder model_;
  std::vector<bool> rotates_;
};

std::vector<Metadata> tiny_configs() {
  std::vector<Metadata> configs;
  const auto add = [&](TinyConfig tiny) {
    configs.push_back(tiny_decoder_metadata("smollm3", tiny));
  };
  add({.n_layers = 5});
  add({.n_layers = 4, .n_heads = 3, .n_kv_heads = 1, .d_head = 40, .rope_scaling = "yarn"});
  return configs;
}

// As published with the weights.
std::vector<PublishedShape> published_shapes() {
  // layers, d_model, heads, KV heads, d_head, d_mlp, vocabulary, context, theta, eps, tied
  constexpr DecoderFacts kFacts[] = {
      {"smollm3-3b", 36, 2048, 16, 4, 128, 11008, 128256, 65536, 5e6, 1e-6f, true},
  };
  std::vector<PublishedShape> shapes;
  for (const DecoderFacts& facts : kFacts) shapes.push_back(published_decoder("smollm3", facts));
  return shapes;
}

}  // namespace

extern const Architecture kSmolLm3;
const Architecture kSmolLm3{"smollm3", &SmolLm3::load, &tiny_configs, &published_shapes};

}  // namespace cutaway::arch
