#include "arch/decoder_weights.h"

#include "trace/trace.h"

namespace cutaway::arch {
namespace {

Result<ops::Linear> load_linear(const LinearRows& rows, WeightSource& source, int64_t layer,
                                int64_t out, int64_t in, int64_t heads = 0) {
  ops::Linear linear;
  CUTAWAY_ASSIGN(linear.weight, source.matrix(rows.weight, layer, out, in, heads));
  if (!rows.bias.gguf.empty()) {
    CUTAWAY_ASSIGN(linear.bias, source.vector(rows.bias, layer, out, heads));
  }
  return linear;
}

Result<DecoderLayer> load_layer(const DecoderRows& rows, WeightSource& source,
                                const ModelShape& shape, int64_t layer) {
  DecoderLayer out;
  const int64_t d = shape.d_model;
  const int64_t q_size = shape.n_heads * shape.d_head;
  const int64_t kv_size = shape.n_kv_heads * shape.d_head;
  CUTAWAY_ASSIGN(out.attention_norm, source.vector(rows.attention_norm, layer, d, 0));
  CUTAWAY_ASSIGN(out.attention.q, load_linear(rows.q, source, layer, q_size, d, shape.n_heads));
  CUTAWAY_ASSIGN(out.attention.k, load_linear(rows.k, source, layer, kv_size, d, shape.n_kv_heads));
  CUTAWAY_ASSIGN(out.attention.v, load_linear(rows.v, source, layer, kv_size, d));
  CUTAWAY_ASSIGN(out.attention.o, load_linear(rows.o, source, layer, d, q_size));
  CUTAWAY_ASSIGN(out.mlp_norm, source.vector(rows.mlp_norm, layer, d, 0));
  CUTAWAY_ASSIGN(out.mlp.gate, load_linear(rows.gate, source, layer, shape.d_mlp, d));
  CUTAWAY_ASSIGN(out.mlp.up, load_linear(rows.up, source, layer, shape.d_mlp, d));
  CUTAWAY_ASSIGN(out.mlp.down, load_linear(rows.down, source, layer, d, shape.d_mlp));
  return out;
}

}  // namespace

Result<DecoderWeights> load_decoder(const DecoderRows& rows, WeightSource& source,
                                    ModelShape& shape, int64_t n_rot) {
  CUTAWAY_SPAN(span, "arch::load_decoder", "layers", shape.n_layers, "d_model", shape.d_model);
  DecoderWeights out;
  CUTAWAY_ASSIGN(shape.vocab, source.rows_of(rows.embedding));
  CUTAWAY_ASSIGN(out.embedding, source.matrix(rows.embedding, -1, shape.vocab, shape.d_model, 0));
  for (int64_t layer = 0; layer < shape.n_layers; ++layer) {
    CUTAWAY_ASSIGN(DecoderLayer loaded, load_layer(rows, source, shape, layer));
    out.layers.push_back(loaded);
  }
  CUTAWAY_ASSIGN(out.final_norm, source.vector(rows.final_norm, -1, shape.d_model, 0));
  CUTAWAY_ASSIGN(out.head.weight, source.matrix(rows.head, -1, shape.vocab, shape.d_model, 0));
  if (!out.head.weight.present()) out.head.weight = out.embedding;
  if (!rows.rope_divisors.gguf.empty()) {
    CUTAWAY_ASSIGN(const ops::Vector divisors, source.vector(rows.rope_divisors, -1, n_rot / 2, 0));
    for (int64_t i = 0; i < divisors.n; ++i) {
      if (!(divisors.data[i] > 0)) {
        return Error{ErrorCode::kInvalidFile,
                     std::string(rows.rope_divisors.gguf) + "[" + std::to_string(i) + "] is " +
                         std::to_string(divisors.data[i]) + ", expected a number above 0",
                     std::string(rows.rope_divisors.gguf)};
      }
    }
    out.rope_divisors.assign(divisors.data, divisors.data + divisors.n);
  }
  CUTAWAY_OUT(span, "vocab", shape.vocab, "tied",
              out.head.weight.packed.data == out.embedding.packed.data);
  return out;
}

}  // namespace cutaway::arch
