// Phi-3 and Phi-4 (arXiv:2404.14219, arXiv:2412.08905): Llama with q, k and v in one tensor, and
// gate and up in one; heads may be rotated in part; LongRoPE (arXiv:2402.13753) divides the rotary
// frequencies by one of two sets of factors, of which a session's context decides.

#include "arch/config.h"
#include "arch/decoder.h"
#include "arch/published.h"
#include "trace/trace.h"

namespace cutaway::arch {
namespace {

constexpr TensorRow kQkv{"blk.{l}.attn_qkv.weight", "model.layers.{l}.self_attn.qkv_proj.weight"};
constexpr TensorRow kGateUp{"blk.{l}.ffn_up.weight", "model.layers.{l}.mlp.gate_up_proj.weight"};

constexpr DecoderRows kRows{
    .embedding = {"token_embd.weight", "model.embed_tokens.weight"},
    .final_norm = {"output_norm.weight", "model.norm.weight"},
    .head = {"output.weight", "lm_head.weight", Transform::kNone, true},
    .rope_divisors = {"rope_factors_short.weight", "", Transform::kNone, true},
    .attention_norm = {"blk.{l}.attn_norm.weight", "model.layers.{l}.input_layernorm.weight"},
    .q = {kQkv, {}},
    .k = {kQkv, {}},
    .v = {kQkv, {}},
    .o = {{"blk.{l}.attn_output.weight", "model.layers.{l}.self_attn.o_proj.weight"}, {}},
    .mlp_norm = {"blk.{l}.ffn_norm.weight", "model.layers.{l}.post_attention_layernorm.weight"},
    .gate = {kGateUp, {}},
    .up = {kGateUp, {}},
    .down = {{"blk.{l}.ffn_down.weight", "model.layers.{l}.mlp.down_proj.weight"}, {}},
    .reads_window = true,
    .rope = {.long_factors = true},
    .long_rope_divisors = {"rope_factors_long.weight", "", Transform::kNone, true},
};

class Phi3 final : public Transformer {
 public:
  explicit Phi3(Decoder model) : model_(std::move(model)) {}

  static Result<std::unique_ptr<Transformer>> load(const Metadata& metadata, WeightSource& source) {
    CUTAWAY_SPAN(span, "arch::Phi3::load");
    const ConfigReader config(metadata);
    CUTAWAY_ASSIGN(Decoder model, load_decoder(kRows, metadata, source));
    // Every layer has it; 0 is how Phi-4's files say that there is none.
    CUTAWAY_ASSIGN(model.attention.window, config.integer_or("attention.sliding_window",
                                                             "sliding_window", 0, 0, INT64_MAX));
    CUTAWAY_OUT(span, "layers", model.shape.n_layers, "vocab", model.shape.vocab, "window",
                model.attention.window);
    return std::unique_ptr<Transformer>(std::make_unique<Phi3>(std::move(model)));
  }

  const ModelShape& shape() const override { return model_.shape; }
  Products products() const override { return decoder_products(model_); }

  ops::Rows forward(ops::Pass& pass) const override {
    CUTAWAY_SPAN(span, "arch::Phi3::forward", "rows", pass.rows());
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
    CUTAWAY_SPAN(span, "arch::Phi3::unembed", "x", x.view());
    const ops::Rows logits = ops::unembed(pass, x, model_.final_norm, model_.eps, model_.head);
    CUTAWAY_OUT(span, "logits", logits.view());
    return logits;
  }

 private:
  Decoder model_;
};

std::vector<Metadata> tiny_configs() {
  std::vector<Metadata> configs;
  const auto add = [&](TinyConfig tiny) -> Metadata& {
    return configs.emplace_back(tiny_decoder_metadata("phi3", tiny));
  };
  // With factors, which the tests' optional tensors bring, and an original context that they need.
  add({}).insert("phi3.rope.scaling.original_context_length", int64_t{64});
  Metadata& partial = add({.n_heads = 3, .n_kv_heads = 1, .d_head = 40});
  partial.insert("phi3.rope.dimension_count", int64_t{24});
  partial.insert("phi3.rope.scaling.original_context_length", int64_t{256});
  partial.insert("phi3.attention.sliding_window", int64_t{24});
  return configs;
}

// As published with the weights. The 4k model has a window of 2047 keys; Phi-4 has none.
std::vector<PublishedShape> published_shapes() {
  // layers, d_model, heads, KV heads, d_head, d_mlp, vocabulary, context, theta, eps, tied
  constexpr DecoderFacts kFacts[] = {
      {"phi-3-mini-4k", 32, 3072, 32, 32, 96, 8192, 32064, 4096, 1e4, 1e-5f, false},
      {"phi-4", 40, 5120, 40, 10, 128, 17920, 100352, 16384, 2.5e5, 1e-5f, false},
  };
  std::vector<PublishedShape> shapes;
  for (const DecoderFacts& facts : kFacts) {
    shapes.push_back(published_decoder("phi3", facts));
    const bool windowed = facts.context == 4096;
    shapes.back().metadata.insert("phi3.attention.sliding_window",
                                  windowed ? uint64_t{2047} : uint64_t{0});
  }
  return shapes;
}

}  // namespace

extern const Architecture kPhi3;
const Architecture kPhi3{"phi3", &Phi3::load, &tiny_configs, &published_shapes};

}  // namespace cutaway::arch
