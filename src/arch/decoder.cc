#include "arch/decoder.h"

#include "arch/config.h"
#include "trace/trace.h"

namespace cutaway::arch {

LinearRows part_of(const LinearRows& rows, int64_t first, int64_t of) {
  CUTAWAY_SPAN(span, "arch::part_of", "tensor", rows.weight.gguf, "first", first, "of", of);
  LinearRows out = rows;
  out.weight.first = out.bias.first = first;
  out.weight.of = out.bias.of = of;
  CUTAWAY_OUT(span, "bias", !out.bias.gguf.empty());
  return out;
}

Result<ops::Linear> load_linear(const LinearRows& rows, WeightSource& source, int64_t layer,
                                int64_t out, int64_t in, int64_t heads) {
  CUTAWAY_SPAN(span, "arch::load_linear", "tensor", rows.weight.gguf, "layer", layer);
  ops::Linear linear;
  CUTAWAY_ASSIGN(linear.weight, source.matrix(rows.weight, layer, out, in, heads));
  if (!rows.bias.gguf.empty()) {
    CUTAWAY_ASSIGN(linear.bias, source.vector(rows.bias, layer, out, heads));
  }
  CUTAWAY_OUT(span, "bias", linear.bias.present());
  return linear;
}

namespace {

// A vector that the architecture may not have.
Result<ops::Vector> load_norm(const TensorRow& row, WeightSource& source, int64_t layer,
                              int64_t n) {
  if (row.gguf.empty()) return ops::Vector{};
  return source.vector(row, layer, n, 0);
}

Result<ops::AttentionWeights> load_attention(const DecoderRows& rows, WeightSource& source,
                                             const ModelShape& shape, float eps, int64_t layer) {
  ops::AttentionWeights out;
  const int64_t d = shape.d_model;
  const int64_t q_size = shape.n_heads * shape.d_head;
  const int64_t kv_size = shape.n_kv_heads * shape.d_head;
  const bool fused = rows.q.weight.gguf == rows.k.weight.gguf;
  const int64_t all = q_size + 2 * kv_size;
  CUTAWAY_ASSIGN(out.q, load_linear(fused ? part_of(rows.q, 0, all) : rows.q, source, layer, q_size,
                                    d, shape.n_heads));
  CUTAWAY_ASSIGN(out.k, load_linear(fused ? part_of(rows.k, q_size, all) : rows.k, source, layer,
                                    kv_size, d, shape.n_kv_heads));
  CUTAWAY_ASSIGN(out.v, load_linear(fused ? part_of(rows.v, q_size + kv_size, all) : rows.v, source,
                                    layer, kv_size, d));
  CUTAWAY_ASSIGN(out.o, load_linear(rows.o, source, layer, d, q_size));
  const bool whole = rows.norms_whole_rows;
  CUTAWAY_ASSIGN(out.qk_norm.q,
                 load_norm(rows.q_norm, source, layer, whole ? q_size : shape.d_head));
  CUTAWAY_ASSIGN(out.qk_norm.k,
                 load_norm(rows.k_norm, source, layer, whole ? kv_size : shape.d_head));
  out.qk_norm.eps = eps;
  return out;
}

Result<ops::GatedMlpWeights> load_mlp(const DecoderRows& rows, WeightSource& source,
                                      const ModelShape& shape, int64_t layer) {
  ops::GatedMlpWeights out;
  const int64_t d = shape.d_model, n = shape.d_mlp;
  const bool fused = rows.gate.weight.gguf == rows.up.weight.gguf;
  CUTAWAY_ASSIGN(
      out.gate, load_linear(fused ? part_of(rows.gate, 0, 2 * n) : rows.gate, source, layer, n, d));
  CUTAWAY_ASSIGN(out.up,
                 load_linear(fused ? part_of(rows.up, n, 2 * n) : rows.up, source, layer, n, d));
  CUTAWAY_ASSIGN(out.down, load_linear(rows.down, source, layer, d, n));
  out.activation = rows.activation;
  return out;
}

// What a mixture's configuration says beside its sizes.
struct MoeConfig {
  bool normalize = false;
  int64_t d_shared = 0;  // 0: no shared expert
};

Result<MoeConfig> read_moe_config(const ConfigReader& config, const MoeRows& rows) {
  MoeConfig out;
  const std::string key = config.key("expert_weights_norm", "norm_topk_prob");
  CUTAWAY_ASSIGN(out.normalize, config.metadata().boolean_or(key, rows.normalize));
  const std::string scale_key = config.key("expert_weights_scale", "routed_scaling_factor");
  CUTAWAY_ASSIGN(const double scale, config.metadata().number_or(scale_key, 1));
  if (scale != 1 && scale != 0) {  // 0 is how writers say that there is none
    return Error{ErrorCode::kUnsupported,
                 "metadata " + scale_key + " is " + std::to_string(scale) +
                     ", which this version does not run: only 1",
                 scale_key};
  }
  if (rows.shared_weight.gguf.empty()) return out;
  // Above any published model, as the other widths.
  constexpr int64_t kMaxWidth = int64_t{1} << 24;
  const char* const gguf = "expert_shared_feed_forward_length";
  const char* const hugging_face = "shared_expert_intermediate_size";
  CUTAWAY_ASSIGN(out.d_shared,
                 config.has(gguf, hugging_face)
                     ? config.integer(gguf, hugging_face, 1, kMaxWidth)
                     : config.integer("feed_forward_length", "intermediate_size", 1, kMaxWidth));
  return out;
}

Result<ops::MoeWeights> load_experts(const MoeRows& rows, WeightSource& source,
                                     const ModelShape& shape, const MoeConfig& config,
                                     int64_t layer) {
  ops::MoeWeights out;
  const int64_t d = shape.d_model, n = shape.n_experts;
  out.used = shape.n_experts_used;
  out.normalize = config.normalize;
  CUTAWAY_ASSIGN(out.router.weight, source.matrix(rows.router, layer, n, d, 0));
  CUTAWAY_ASSIGN(const ops::ExpertMatrices gate,
                 source.experts(rows.gate, layer, n, shape.d_mlp, d));
  CUTAWAY_ASSIGN(const ops::ExpertMatrices up, source.experts(rows.up, layer, n, shape.d_mlp, d));
  CUTAWAY_ASSIGN(const ops::ExpertMatrices down,
                 source.experts(rows.down, layer, n, d, shape.d_mlp));
  out.experts.reserve(static_cast<size_t>(n));
  for (int64_t e = 0; e < n; ++e) {
    out.experts.push_back({{gate.of(e), {}}, {up.of(e), {}}, {down.of(e), {}}});
  }
  if (config.d_shared == 0) return out;
  CUTAWAY_ASSIGN(out.shared_gate, source.vector(rows.shared_weight, layer, d, 0));
  CUTAWAY_ASSIGN(out.shared.gate.weight,
                 source.matrix(rows.shared_gate, layer, config.d_shared, d, 0));
  CUTAWAY_ASSIGN(out.shared.up.weight, source.matrix(rows.shared_up, layer, config.d_shared, d, 0));
  CUTAWAY_ASSIGN(out.shared.down.weight,
                 source.matrix(rows.shared_down, layer, d, config.d_shared, 0));
  return out;
}

// What the configuration says; weights are read by it.
struct LayerConfig {
  ModelShape shape;
  float eps;
  const MoeRows* experts;  // null: a gated MLP
  MoeConfig moe;
};

Result<DecoderLayer> load_layer(const DecoderRows& rows, WeightSource& source,
                                const LayerConfig& config, int64_t layer) {
  const ModelShape& shape = config.shape;
  DecoderLayer out;
  const int64_t d = shape.d_model;
  CUTAWAY_ASSIGN(out.attention_norm, load_norm(rows.attention_norm, source, layer, d));
  CUTAWAY_ASSIGN(out.attention, load_attention(rows, source, shape, config.eps, layer));
  CUTAWAY_ASSIGN(out.post_attention_norm, load_norm(rows.post_attention_norm, source, layer, d));
  CUTAWAY_ASSIGN(out.mlp_norm, load_norm(rows.mlp_norm, source, layer, d));
  CUTAWAY_ASSIGN(out.post_mlp_norm, load_norm(rows.post_mlp_norm, source, layer, d));
  if (config.experts != nullptr) {
    CUTAWAY_ASSIGN(out.moe, load_experts(*config.experts, source, shape, config.moe, layer));
    return out;
  }
  CUTAWAY_ASSIGN(out.mlp, load_mlp(rows, source, shape, layer));
  return out;
}

// Divisors of the rotary frequencies, one per pair; empty when the file has none.
Result<std::vector<float>> load_rope_divisors(const TensorRow& row, WeightSource& source,
                                              int64_t pairs) {
  if (row.gguf.empty()) return std::vector<float>{};
  CUTAWAY_ASSIGN(const ops::Vector divisors, source.vector(row, -1, pairs, 0));
  for (int64_t i = 0; i < divisors.n; ++i) {
    if (!(divisors.data[i] > 0)) {
      return Error{ErrorCode::kInvalidFile,
                   std::string(row.gguf) + "[" + std::to_string(i) + "] is " +
                       std::to_string(divisors.data[i]) + ", expected a number above 0",
                   std::string(row.gguf)};
    }
  }
  return std::vector<float>(divisors.data, divisors.data + divisors.n);
}

// Two sets make LongRoPE: one alone says nothing about the other's contexts.
Status load_divisors(const DecoderRows& rows, const ConfigReader& config, WeightSource& source,
                     ops::RopeConfig& rope) {
  const int64_t pairs = rope.n_rot / 2;
  if (rope.divisors.empty()) {  // Hugging Face has them in the configuration
    CUTAWAY_ASSIGN(rope.divisors, load_rope_divisors(rows.rope_divisors, source, pairs));
    CUTAWAY_ASSIGN(rope.long_divisors, load_rope_divisors(rows.long_rope_divisors, source, pairs));
  }
  if (!rows.rope.long_factors) return {};
  if (rope.divisors.empty() != rope.long_divisors.empty()) {
    const std::string absent(rope.divisors.empty() ? rows.rope_divisors.gguf
                                                   : rows.long_rope_divisors.gguf);
    return Error{ErrorCode::kInvalidFile,
                 "tensor " + absent + " is missing: the file has the other of the two", absent};
  }
  if (rope.divisors.empty()) return {};
  return config.finish_long_rope(rope);
}

// Rows that lie pair by pair are put in halves of the whole head: a head that is rotated in part
// would pair others.
Status check_rotation(const DecoderRows& rows, const ConfigReader& config,
                      const ops::RopeConfig& rope, int64_t d_head) {
  if (rows.q.weight.transform != Transform::kRopePairs || rope.n_rot == d_head) return {};
  const std::string key = config.key("rope.dimension_count", "rotary_dim");
  return Error{ErrorCode::kUnsupported,
               "metadata " + key + " is " + std::to_string(rope.n_rot) +
                   ", this architecture rotates the whole head: " + std::to_string(d_head),
               key};
}

}  // namespace

Result<Decoder> load_decoder(const DecoderRows& rows, const Metadata& metadata,
                             WeightSource& source, const MoeRows* experts) {
  CUTAWAY_SPAN(span, "arch::load_decoder", "mixture", experts != nullptr);
  const ConfigReader config(metadata);
  CUTAWAY_ASSIGN(const DecoderConfig read, read_decoder_config(config, experts != nullptr));
  MoeConfig moe;
  if (experts != nullptr) {
    CUTAWAY_ASSIGN(moe, read_moe_config(config, *experts));
  }
  if (!rows.reads_window) CUTAWAY_TRY(refuse_window(config, read.shape.context_length));
  CUTAWAY_TRY(check_activation(config, rows.activation));
  CUTAWAY_ASSIGN(ops::RopeConfig rope, config.rope(read.shape.d_head, rows.rope));
  CUTAWAY_TRY(check_rotation(rows, config, rope, read.shape.d_head));
  Decoder out;
  out.shape = read.shape;
  out.eps = read.eps;
  CUTAWAY_ASSIGN(out.shape.vocab, source.rows_of(rows.embedding));
  const int64_t vocab = out.shape.vocab, d_model = out.shape.d_model;
  CUTAWAY_ASSIGN(out.embedding, source.matrix(rows.embedding, -1, vocab, d_model, 0));
  for (int64_t layer = 0; layer < out.shape.n_layers; ++layer) {
    CUTAWAY_ASSIGN(DecoderLayer loaded,
                   load_layer(rows, source, {out.shape, out.eps, experts, moe}, layer));
    out.layers.push_back(std::move(loaded));
  }
  CUTAWAY_ASSIGN(out.final_norm, source.vector(rows.final_norm, -1, d_model, 0));
  CUTAWAY_ASSIGN(out.head.weight, source.matrix(rows.head, -1, vocab, d_model, 0));
  const bool tied = !out.head.weight.present();
  if (tied) out.head.weight = out.embedding;
  CUTAWAY_TRY(load_divisors(rows, config, source, rope));
  out.rope = ops::Rope(rope);
  out.attention = attention_shape(out.shape);
  CUTAWAY_OUT(span, "layers", out.shape.n_layers, "d_model", d_model, "vocab", vocab, "tied", tied);
  return out;
}

Products decoder_products(const Decoder& model) {
  CUTAWAY_SPAN(span, "arch::decoder_products", "layers", model.shape.n_layers);
  Products out;
  out.layers.reserve(model.layers.size() * 7);
  for (const DecoderLayer& layer : model.layers) {
    const ops::AttentionWeights& attention = layer.attention;
    const ops::MoeWeights& moe = layer.moe;
    const ops::GatedMlpWeights& mlp = moe.present() ? moe.shared : layer.mlp;
    for (const ops::Linear* linear : {&attention.q, &attention.k, &attention.v, &attention.o,
                                      &mlp.gate, &mlp.up, &mlp.down, &moe.router}) {
      if (linear->weight.present()) out.layers.push_back(linear->weight.packed);
    }
    if (!moe.present()) continue;
    const ops::GatedMlpWeights& expert = moe.experts.front();
    for (const ops::Linear* linear : {&expert.gate, &expert.up, &expert.down}) {
      out.experts.push_back(
          {linear->weight.packed, static_cast<int64_t>(moe.experts.size()), moe.used});
    }
  }
  out.head = model.head.weight.packed;
  CUTAWAY_OUT(span, "matrices", out.layers.size());
  return out;
}

}  // namespace cutaway::arch
