#include <algorithm>
#include <map>

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

// Bits per weight over these tensors; 0 for none.
double bits_per_weight(uint64_t bytes, uint64_t elements) {
  return elements == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(elements);
}

// Of each type that the file's tensors have, the largest share of bytes first.
Json type_totals(const ModelFile& file) {
  struct Total {
    int64_t tensors = 0;
    uint64_t elements = 0, bytes = 0;
  };
  std::map<std::string, Total> totals;
  for (const StoredTensor& tensor : file.tensors) {
    Total& total = totals[dtype_name(tensor.dtype)];
    ++total.tensors;
    total.elements += static_cast<uint64_t>(tensor.shape.elements());
    total.bytes += tensor.size;
  }
  std::vector<std::pair<std::string, Total>> order(totals.begin(), totals.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  Json out = Json::array();
  for (const auto& [name, total] : order) {
    out.push_back({{"dtype", name},
                   {"tensors", total.tensors},
                   {"parameters", total.elements},
                   {"bytes", total.bytes},
                   {"bits_per_weight", bits_per_weight(total.bytes, total.elements)}});
  }
  return out;
}

Json tensor_list(const ModelFile& file) {
  Json list = Json::array();
  for (const StoredTensor& tensor : file.tensors) {
    std::vector<int64_t> shape;
    shape.reserve(Shape::kMaxRank);
    for (int i = 0; i < tensor.shape.rank(); ++i) shape.push_back(tensor.shape[i]);
    Json item = {{"name", tensor.name},
                 {"dtype", dtype_name(tensor.dtype)},
                 {"shape", shape},
                 {"bytes", tensor.size},
                 {"offset", tensor.offset}};
    if (file.files.size() > 1) item["shard"] = tensor.file + 1;
    list.push_back(std::move(item));
  }
  return list;
}

Json tokenizer_info(const text::Tokenizer& tokenizer) {
  const auto& special = tokenizer.special_ids();
  Json ids = Json::object();
  for (const auto& [name, id] :
       {std::pair("bos", special.bos), std::pair("eos", special.eos), std::pair("eot", special.eot),
        std::pair("eom", special.eom), std::pair("unknown", special.unknown),
        std::pair("padding", special.padding)}) {
    if (id >= 0) ids[name] = {{"id", id}, {"piece", tokenizer.piece(id)}};
  }
  return {{"model", tokenizer.model_name()},  {"pre", tokenizer.pre_tokenizer_name()},
          {"tokens", tokenizer.vocab_size()}, {"end_ids", tokenizer.end_ids()},
          {"special", std::move(ids)},        {"add_bos", special.add_bos},
          {"add_eos", special.add_eos}};
}

// The model's licence, as its file says; empty when it says nothing.
Json licence_info(const Metadata& metadata) {
  Json out = Json::object();
  for (const auto& [name, key] :
       {std::pair("id", "general.license"), std::pair("name", "general.license.name"),
        std::pair("link", "general.license.link")}) {
    const auto value = metadata.string_or(key, "");
    if (value.ok() && !value->empty()) out[name] = *value;
  }
  return out;
}

Json sampling_info(const model::SamplingDefaults& defaults) {
  Json out = Json::object();
  for (const auto& [name, value] :
       {std::pair("temperature", &defaults.temperature), std::pair("top_p", &defaults.top_p),
        std::pair("min_p", &defaults.min_p), std::pair("typical_p", &defaults.typical_p),
        std::pair("repeat_penalty", &defaults.repeat_penalty)}) {
    if (value->has_value()) out[name] = **value;
  }
  if (defaults.top_k) out["top_k"] = *defaults.top_k;
  return out;
}

}  // namespace

Json ModelImpl::info(bool tensors) const {
  CUTAWAY_SPAN(span, "api::Model::info", "model", name_, "tensors", tensors);
  const ModelFile& file = model_->file();
  const arch::ModelShape& m = model_->shape();
  Json metadata = Json::object();
  for (const auto& [key, value] : file.metadata.entries()) metadata[key] = value_json(value);
  std::map<std::string, int64_t> types;
  uint64_t tensor_bytes = 0, elements = 0;
  for (const StoredTensor& tensor : file.tensors) {
    ++types[dtype_name(tensor.dtype)];
    tensor_bytes += tensor.size;
    elements += static_cast<uint64_t>(tensor.shape.elements());
  }
  Json kv_bytes = Json::object(), kv_context = Json::object();  // by --cache-type
  for (const auto type :
       {kernels::KvType::kF32, kernels::KvType::kF16, kernels::KvType::kQ8, kernels::KvType::kQ4}) {
    const int64_t page = kv_geometry(*model_, type).page_bytes();
    kv_bytes[kernels::kv_type_name(type)] = page / kernels::kTilePositions;
    kv_context[kernels::kv_type_name(type)] = page * kv::Geometry::pages_for(m.context_length);
  }
  Json out = {{"name", name_},
              {"path", file.path},
              {"format", file.format},
              {"bytes", file.total_bytes()},
              {"architecture", model_->architecture()},
              {"parameters", model_->parameters()},
              {"bits_per_weight", bits_per_weight(tensor_bytes, elements)},
              {"packed_bytes", model_->packed_bytes()},
              {"context_length", m.context_length},
              {"layers", m.n_layers},
              {"d_model", m.d_model},
              {"heads", m.n_heads},
              {"kv_heads", m.n_kv_heads},
              {"d_head", m.d_head},
              {"d_mlp", m.d_mlp},
              {"vocab", m.vocab},
              {"tokenizer", tokenizer_info(*model_->tokenizer())},
              {"chat_template", has_chat_template()},
              {"sampling_defaults", sampling_info(model_->sampling_defaults())},
              {"licence", licence_info(file.metadata)},
              {"kv_bytes_per_token", std::move(kv_bytes)},
              {"kv_bytes_of_context", std::move(kv_context)},
              {"tensor_types", types},
              {"types", type_totals(file)},
              {"tensor_count", file.tensors.size()},
              {"load_ms", load_ms_},
              {"metadata", std::move(metadata)}};
  if (m.n_experts > 0) {
    out["experts"] = m.n_experts;
    out["experts_used"] = m.n_experts_used;
  }
  if (file.files.size() > 1) {
    Json files = Json::array();
    for (const InputFile& shard : file.files) {
      files.push_back({{"path", shard.path()}, {"bytes", shard.size()}});
    }
    out["files"] = std::move(files);
  }
  if (tensors) out["tensors"] = tensor_list(file);
  CUTAWAY_OUT(span, "types", out.at("types").size());
  return out;
}

}  // namespace cutaway::api
