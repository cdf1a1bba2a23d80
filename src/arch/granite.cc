// Granite 3 (IBM, 2024): Llama with four multipliers, of the embeddings, of what each block adds,
// of the scores, and a divisor of the logits (the last as in maximal update parametrisation,
// arXiv:2203.03466).

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
    .q = {{"blk.{l}.attn_q.weight", "model.layers.{l}.self_attn.q_proj.weight", kPairs},
          {"blk.{l}.attn_q.bias", "model.layers.{l}.self_attn.q_proj.bias", kPairs, true}},
    .k = {{"blk.{l}.attn_k.weight", "model.layers.{l}.self_attn.k_proj.weight", kPairs},
          {"blk.{l}.attn_k.bias", "model.layers.{l}.self_attn.k_proj.bias", kPairs, true}},
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

struct Multipliers {
  float embedding = 1, residual = 1, logits = 1;
};

class Granite final : public Transformer {
 public:
  Granite(Decoder model, const Multipliers& by) : model_(std::move(model)), by_(by) {}

  static Result<std::unique_ptr<Transformer>> load(const Metadata& metadata, WeightSource& source) {
    CUTAWAY_SPAN(span, "arch::Granite::load");
    const ConfigReader config(metadata);
    CUTAWAY_ASSIGN(Decoder model, load_decoder(kRows, metadata, source));
    const std::string rotates = config.key("rope.scaling.finetuned", "");
    CUTAWAY_ASSIGN(const bool rope, metadata.boolean_or(rotates, true));
    if (!rope) {
      return Error{ErrorCode::kUnsupported,
                   "metadata " + rotates +
                       " is false (no rotary positions), which this version does "
                       "not run for this architecture",
                   rotates};
    }
    Multipliers by;
    CUTAWAY_ASSIGN(const double score,
                   config.positive_or("attention.scale", "attention_multiplier",
                                      static_cast<double>(model.attention.scale)));
    CUTAWAY_ASSIGN(const double embedding,
                   config.positive_or("embedding_scale", "embedding_multiplier", 1));
    CUTAWAY_ASSIGN(const double residual,
                   config.positive_or("residual_scale", "residual_multiplier", 1));
    CUTAWAY_ASSIGN(const double divisor, config.positive_or("logit_scale", "logits_scaling", 1));
    model.attention.scale = static_cast<float>(score);
    by.embedding = static_cast<float>(embedding);
    by.residual = static_cast<float>(residual);
    by.logits = static_cast<float>(1 / divisor);
    CUTAWAY_OUT(span, "layers", model.shape.n_layers, "vocab", model.shape.vocab, "scores", score,
                "embedding", embedding, "residual", residual, "logits", by.logits);
    return std::unique_ptr<Transformer>(std::make_unique<Granite>(std::move(model), by));
  }

  const ModelShape& shape() const override { return model_.shape; }
  Products products() const override { return decoder_products(model_); }

  ops::Rows forward(ops::Pass& pass) const override {
    CUTAWAY_SPAN(span, "arch::Granite::forward", "rows", pass.rows());
    const Decoder& m = model_;
    const ops::Rows x = ops::embed(pass, m.embedding, by_.embedding);  // the residual stream
    const ops::Rope::Angles angles = m.rope.angles(pass);
    for (int layer = 0; layer < static_cast<int>(m.shape.n_layers); ++layer) {
      const LayerScope scope(pass, layer);
      const DecoderLayer& w = m.layers[static_cast<size_t>(layer)];

      ops::Input normalized = ops::rms_norm(pass, ops::kNorm1, layer, x, w.attention_norm, m.eps,
                                            w.attention.readers());
      const ops::Rows attended =
          ops::self_attention(pass, layer, m.attention, w.attention, m.rope, angles, normalized);
      ops::add_residual(pass, ops::kAfterAttention, layer, x, attended, by_.residual);

      normalized = ops::rms_norm(pass, ops::kNorm2, layer, x, w.mlp_norm, m.eps, w.mlp.readers());
      const ops::Rows transformed = ops::gated_mlp(pass, layer, w.mlp, normalized);
      ops::add_residual(pass, ops::kAfterMlp, layer, x, transformed, by_.residual);
    }
    const ops::Rows logits = unembed(pass, x);
    CUTAWAY_OUT(span, "logits", logits.view());
    return logits;
  }

  ops::Rows unembed(ops::Pass& pass, const ops::Rows& x) const override {
    CUTAWAY_SPAN(span, "arch::Granite::unembed", "x", x.view());
    const ops::Rows logits = ops::unembed(pass, x, model_.final_norm, model_.eps, model_.head,
                                          {.multiplier = by_.logits});
    CUTAWAY_OUT(span, "logits", logits.view());
    return logits;
  }

 private:
  Decoder model_;
  Multipliers by_;
};

// Floats: other readers expect f32, which a writer makes of what f32 holds.
Metadata with_multipliers(Metadata metadata, float score, float embedding, float residual,
                          float logits) {
  metadata.insert("granite.attention.scale", static_cast<double>(score));
  metadata.insert("granite.embedding_scale", static_cast<double>(embedding));
  metadata.insert("granite.residual_scale", static_cast<double>(residual));
  metadata.insert("granite.logit_scale", static_cast<double>(logits));
  return metadata;
}

std::vector<Metadata> tiny_configs() {
  return {
      with_multipliers(tiny_decoder_metadata("granite", {}), 0.125f, 6, 0.22f, 4),
      with_multipliers(
          tiny_decoder_metadata("granite", {.n_heads = 3, .n_kv_heads = 1, .d_head = 40}), 0.5f,
          0.5f, 1.5f, 0.25f),
      tiny_decoder_metadata("granite", {.n_heads = 4, .n_kv_heads = 4, .rope_scaling = "linear"}),
  };
}

// As published with the weights of Granite 3.3.
std::vector<PublishedShape> published_shapes() {
  // layers, d_model, heads, KV heads, d_head, d_mlp, vocabulary, context, theta, eps, tied
  constexpr DecoderFacts k2B{"granite-3.3-2b", 40,  2048,  32,  8, 64, 8192, 49159,
                             131072,           1e7, 1e-5f, true};
  PublishedShape shape = published_decoder("granite", k2B);
  shape.metadata = with_multipliers(std::move(shape.metadata), 0.015625f, 12, 0.22f, 8);
  return {std::move(shape)};
}

}  // namespace

extern const Architecture kGranite;
const Architecture kGranite{"granite", &Granite::load, &tiny_configs, &published_shapes};

}  // namespace cutaway::arch
