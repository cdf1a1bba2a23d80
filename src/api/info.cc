#include "api/impl.h"

namespace cutaway::api {
namespace {

// Arrays keep their first elements and say how many there are: a vocabulary is not information that
// anyone reads whole.
constexpr size_t kArrayShown = 8;

template <typename T>
Json clipped(const std::vector<T>& values) {
  if (values.size() <= kArrayShown) return Json(values);
  return Json{{"count", values.size()},
              {"first", std::vector<T>(values.begin(), values.begin() + kArrayShown)}};
}

Json value_json(const MetaValue& value) {
  return std::visit(
      [](const auto& v) -> Json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
          return v;
        } else {
          return clipped(v);
        }
      },
      value);
}

}  // namespace

Json ModelImpl::info(bool tensors) const {
  const ModelFile& file = model_->file();
  const arch::ModelShape& m = model_->shape();
  const text::Tokenizer& tokenizer = *model_->tokenizer();
  Json metadata = Json::object();
  for (const auto& [key, value] : file.metadata.entries()) metadata[key] = value_json(value);
  std::map<std::string, int64_t> types;
  for (const StoredTensor& tensor : file.tensors) ++types[dtype_name(tensor.dtype)];
  Json kv_bytes = Json::object();  // by --cache-type
  for (const auto type :
       {kernels::KvType::kF32, kernels::KvType::kF16, kernels::KvType::kQ8, kernels::KvType::kQ4}) {
    kv_bytes[kernels::kv_type_name(type)] =
        kv_geometry(*model_, type).page_bytes() / kernels::kTilePositions;
  }
  Json out = {{"name", name_},
              {"path", file.path},
              {"format", file.format},
              {"bytes", file.total_bytes()},
              {"architecture", model_->architecture()},
              {"parameters", model_->parameters()},
              {"packed_bytes", model_->packed_bytes()},
              {"context_length", m.context_length},
              {"layers", m.n_layers},
              {"d_model", m.d_model},
              {"heads", m.n_heads},
              {"kv_heads", m.n_kv_heads},
              {"d_head", m.d_head},
              {"d_mlp", m.d_mlp},
              {"vocab", m.vocab},
              {"tokenizer",
               {{"model", tokenizer.model_name()},
                {"pre", tokenizer.pre_tokenizer_name()},
                {"tokens", tokenizer.vocab_size()},
                {"end_ids", tokenizer.end_ids()}}},
              {"chat_template", has_chat_template()},
              {"kv_bytes_per_token", std::move(kv_bytes)},
              {"tensor_types", types},
              {"tensor_count", file.tensors.size()},
              {"load_ms", load_ms_},
              {"metadata", std::move(metadata)}};
  if (m.n_experts > 0) {
    out["experts"] = m.n_experts;
    out["experts_used"] = m.n_experts_used;
  }
  if (tensors) {
    Json list = Json::array();
    for (const StoredTensor& tensor : file.tensors) {
      std::vector<int64_t> shape;
      shape.reserve(Shape::kMaxRank);
      for (int i = 0; i < tensor.shape.rank(); ++i) shape.push_back(tensor.shape[i]);
      list.push_back({{"name", tensor.name},
                      {"dtype", dtype_name(tensor.dtype)},
                      {"shape", shape},
                      {"bytes", tensor.size}});
    }
    out["tensors"] = std::move(list);
  }
  return out;
}

}  // namespace cutaway::api
