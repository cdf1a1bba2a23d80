// GPT-2 (Radford et al. 2019): learned positions are added to the embeddings, norms are LayerNorms,
// the MLP has no gate, and everything has a bias.

#include "arch/config.h"
#include "arch/decoder.h"
#include "arch/published.h"
#include "trace/trace.h"

namespace cutaway::arch {
namespace {

// Hugging Face keeps the products' matrices with the inputs first, GGUF as all others.
constexpr Transform kTurned = Transform::kTransposed;

struct Rows {
  TensorRow embedding{"token_embd.weight", "transformer.wte.weight"};
  TensorRow positions{"position_embd.weight", "transformer.wpe.weight"};
  LinearRows final_norm{{"output_norm.weight", "transformer.ln_f.weight"},
                        {"output_norm.bias", "transformer.ln_f.bias"}};
  TensorRow head{"output.weight", "lm_head.weight", Transform::kNone, true};
  LinearRows norm1{{"blk.{l}.attn_norm.weight", "transformer.h.{l}.ln_1.weight"},
                   {"blk.{l}.attn_norm.bias", "transformer.h.{l}.ln_1.bias"}};
  LinearRows qkv{{"blk.{l}.attn_qkv.weight", "transformer.h.{l}.attn.c_attn.weight", kTurned},
                 {"blk.{l}.attn_qkv.bias", "transformer.h.{l}.attn.c_attn.bias"}};
  LinearRows o{{"blk.{l}.attn_output.weight", "transformer.h.{l}.attn.c_proj.weight", kTurned},
               {"blk.{l}.attn_output.bias", "transformer.h.{l}.attn.c_proj.bias"}};
  LinearRows norm2{{"blk.{l}.ffn_norm.weight", "transformer.h.{l}.ln_2.weight"},
                   {"blk.{l}.ffn_norm.bias", "transformer.h.{l}.ln_2.bias"}};
  LinearRows up{{"blk.{l}.ffn_up.weight", "transformer.h.{l}.mlp.c_fc.weight", kTurned},
                {"blk.{l}.ffn_up.bias", "transformer.h.{l}.mlp.c_fc.bias"}};
  LinearRows down{{"blk.{l}.ffn_down.weight", "transformer.h.{l}.mlp.c_proj.weight", kTurned},
                  {"blk.{l}.ffn_down.bias", "transformer.h.{l}.mlp.c_proj.bias"}};
};
constexpr Rows kRows;

struct Layer {
  ops::LayerNorm norm1, norm2;
  ops::AttentionWeights attention;
  ops::MlpWeights mlp;
};

struct Model {
  ModelShape shape;
  ops::Matrix embedding, positions;
  std::vector<Layer> layers;
  ops::LayerNorm final_norm;
  ops::Linear head;
  ops::AttentionShape attention;
};

Result<ModelShape> read_shape(const ConfigReader& config) {
  ModelShape shape;
  constexpr int64_t kMaxWidth = int64_t{1} << 24;
  CUTAWAY_ASSIGN(shape.n_layers, config.integer("block_count", "n_layer", 1, 4096));
  CUTAWAY_ASSIGN(shape.d_model, config.integer("embedding_length", "n_embd", 1, kMaxWidth));
  CUTAWAY_ASSIGN(shape.d_mlp, config.integer_or("feed_forward_length", "n_inner", 4 * shape.d_model,
                                                1, 4 * kMaxWidth));
  CUTAWAY_ASSIGN(shape.n_heads, config.integer("attention.head_count", "n_head", 1, 65536));
  CUTAWAY_ASSIGN(shape.context_length, config.integer("context_length", "n_positions", 1, 1 << 30));
  CUTAWAY_TRY(config.require_text("activation_function", {"gelu_new", "gelu_pytorch_tanh"}));
  const std::string key = config.key("attention.head_count", "n_head");
  if (shape.d_model % shape.n_heads != 0) {
    return Error{ErrorCode::kInvalidFile,
                 "metadata " + key + " is " + std::to_string(shape.n_heads) +
                     ", which does not divide the width " + std::to_string(shape.d_model),
                 key};
  }
  CUTAWAY_ASSIGN(shape.n_kv_heads,
                 config.integer_or("attention.head_count_kv", "n_head", shape.n_heads, 1, 65536));
  if (shape.n_kv_heads != shape.n_heads) {
    const std::string kv_key = config.key("attention.head_count_kv", "n_head");
    return Error{ErrorCode::kUnsupported,
                 "metadata " + kv_key + " is " + std::to_string(shape.n_kv_heads) +
                     ", expected the " + std::to_string(shape.n_heads) +
                     " of the heads: this architecture groups none",
                 kv_key};
  }
  shape.d_head = shape.d_model / shape.n_heads;
  if (shape.d_head > kernels::kMaxHeadSize) {
    return Error{ErrorCode::kUnsupported,
                 "metadata " + key + " is " + std::to_string(shape.n_heads) +
                     ", which gives heads of " + std::to_string(shape.d_head) +
                     " elements; at most " + std::to_string(kernels::kMaxHeadSize) +
                     " are possible",
                 key};
  }
  shape.gated_mlp = false;
  shape.learned_positions = true;
  return shape;
}

Result<ops::LayerNorm> load_norm(const LinearRows& rows, WeightSource& source, int64_t layer,
                                 int64_t n, float eps) {
  ops::LayerNorm norm;
  CUTAWAY_ASSIGN(norm.weight, source.vector(rows.weight, layer, n, 0));
  CUTAWAY_ASSIGN(norm.bias, source.vector(rows.bias, layer, n, 0));
  norm.eps = eps;
  return norm;
}

Result<Layer> load_layer(WeightSource& source, const ModelShape& shape, float eps, int64_t layer) {
  Layer out;
  const int64_t d = shape.d_model;
  CUTAWAY_ASSIGN(out.norm1, load_norm(kRows.norm1, source, layer, d, eps));
  int64_t first = 0;
  for (ops::Linear* part : {&out.attention.q, &out.attention.k, &out.attention.v}) {
    CUTAWAY_ASSIGN(*part, load_linear(part_of(kRows.qkv, first, 3 * d), source, layer, d, d));
    first += d;
  }
  CUTAWAY_ASSIGN(out.attention.o, load_linear(kRows.o, source, layer, d, d));
  CUTAWAY_ASSIGN(out.norm2, load_norm(kRows.norm2, source, layer, d, eps));
  CUTAWAY_ASSIGN(out.mlp.up, load_linear(kRows.up, source, layer, shape.d_mlp, d));
  CUTAWAY_ASSIGN(out.mlp.down, load_linear(kRows.down, source, layer, d, shape.d_mlp));
  return out;
}

class Gpt2 final : public Transformer {
 public:
  explicit Gpt2(Model model) : model_(std::move(model)) {}

  static Result<std::unique_ptr<Transformer>> load(const Metadata& metadata, WeightSource& source) {
    CUTAWAY_SPAN(span, "arch::Gpt2::load");
    const ConfigReader config(metadata);
    Model m;
    CUTAWAY_ASSIGN(m.shape, read_shape(config));
    CUTAWAY_ASSIGN(const double eps,
                   config.positive("attention.layer_norm_epsilon", "layer_norm_epsilon"));
    const auto eps32 = static_cast<float>(eps);
    CUTAWAY_ASSIGN(m.shape.vocab, source.rows_of(kRows.embedding));
    const int64_t vocab = m.shape.vocab, d = m.shape.d_model;
    CUTAWAY_ASSIGN(m.embedding, source.matrix(kRows.embedding, -1, vocab, d, 0));
    CUTAWAY_ASSIGN(m.positions, source.matrix(kRows.positions, -1, m.shape.context_length, d, 0));
    for (int64_t layer = 0; layer < m.shape.n_layers; ++layer) {
      CUTAWAY_ASSIGN(const Layer loaded, load_layer(source, m.shape, eps32, layer));
      m.layers.push_back(loaded);
    }
    CUTAWAY_ASSIGN(m.final_norm, load_norm(kRows.final_norm, source, -1, d, eps32));
    CUTAWAY_ASSIGN(m.head.weight, source.matrix(kRows.head, -1, vocab, d, 0));
    if (!m.head.weight.present()) m.head.weight = m.embedding;
    m.attention = attention_shape(m.shape);
    CUTAWAY_OUT(span, "layers", m.shape.n_layers, "vocab", vocab);
    return std::unique_ptr<Transformer>(std::make_unique<Gpt2>(std::move(m)));
  }

  const ModelShape& shape() const override { return model_.shape; }

  Products products() const override {
    CUTAWAY_SPAN(span, "arch::Gpt2::products", "layers", model_.shape.n_layers);
    Products out;
    for (const Layer& layer : model_.layers) {
      for (const ops::Linear* linear : {&layer.attention.q, &layer.attention.k, &layer.attention.v,
                                        &layer.attention.o, &layer.mlp.up, &layer.mlp.down}) {
        out.layers.push_back(linear->weight.packed);
      }
    }
    out.head = model_.head.weight.packed;
    CUTAWAY_OUT(span, "matrices", out.layers.size());
    return out;
  }

  ops::Rows forward(ops::Pass& pass) const override {
    CUTAWAY_SPAN(span, "arch::Gpt2::forward", "rows", pass.rows());
    const Model& m = model_;
    const ops::Rows x = ops::embed(pass, m.embedding);  // the residual stream, {rows, d_model}
    ops::add_positions(pass, m.positions, x);
    const ops::Rope none;
    for (int layer = 0; layer < static_cast<int>(m.shape.n_layers); ++layer) {
      const LayerScope scope(pass, layer);
      const Layer& w = m.layers[static_cast<size_t>(layer)];

      ops::Input normalized =
          ops::layer_norm(pass, ops::kNorm1, layer, x, w.norm1, w.attention.readers());
      ops::self_attention_onto(pass, layer, m.attention, w.attention, none, {}, normalized, x);

      normalized = ops::layer_norm(pass, ops::kNorm2, layer, x, w.norm2, w.mlp.readers());
      ops::mlp_onto(pass, layer, w.mlp, normalized, x);
    }
    const ops::Rows logits = unembed(pass, x);
    CUTAWAY_OUT(span, "logits", logits.view());
    return logits;
  }

  ops::Rows unembed(ops::Pass& pass, const ops::Rows& x) const override {
    CUTAWAY_SPAN(span, "arch::Gpt2::unembed", "x", x.view());
    const ops::Rows logits = ops::unembed(pass, x, model_.final_norm, model_.head);
    CUTAWAY_OUT(span, "logits", logits.view());
    return logits;
  }

 private:
  Model model_;
};

Metadata metadata_of(int64_t n_layers, int64_t d_model, int64_t n_heads, int64_t d_mlp,
                     int64_t context) {
  Metadata metadata;
  const auto set = [&](const char* key, int64_t value) {
    metadata.insert(std::string("gpt2.") + key, static_cast<uint64_t>(value));
  };
  metadata.insert("general.architecture", std::string("gpt2"));
  set("block_count", n_layers);
  set("context_length", context);
  set("embedding_length", d_model);
  set("feed_forward_length", d_mlp);
  set("attention.head_count", n_heads);
  // Other readers expect f32, which a writer makes of what f32 holds.
  metadata.insert("gpt2.attention.layer_norm_epsilon", static_cast<double>(1e-5f));
  return metadata;
}

std::vector<Metadata> tiny_configs() {
  return {metadata_of(2, 64, 4, 96, 256), metadata_of(3, 40, 1, 160, 160),
          metadata_of(2, 96, 6, 64, 256)};
}

// As published with the weights.
std::vector<PublishedShape> published_shapes() {
  struct Facts {
    const char* name;
    int64_t n_layers, d_model, n_heads;
  };
  std::vector<PublishedShape> shapes;
  for (const Facts& f : {Facts{"gpt2", 12, 768, 12}, Facts{"gpt2-xl", 48, 1600, 25}}) {
    PublishedShape shape;
    shape.name = f.name;
    shape.metadata = metadata_of(f.n_layers, f.d_model, f.n_heads, 4 * f.d_model, 1024);
    shape.vocab = 50257;
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

}  // namespace

extern const Architecture kGpt2;
const Architecture kGpt2{"gpt2", &Gpt2::load, &tiny_configs, &published_shapes};

}  // namespace cutaway::arch
