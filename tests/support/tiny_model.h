// Any architecture's tiny configurations, with random weights, as a model in memory: the weights
// that its loader asks for are made up, so a new architecture is tested without a line here.
#pragma once

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "arch/architecture.h"
#include "arch/config.h"
#include "formats/gguf.h"
#include "kernels/layout.h"
#include "model/loaded_model.h"

namespace cutaway::testing {

// Answers every request with random values and remembers them as stored tensors.
class RandomWeights final : public arch::WeightSource {
 public:
  RandomWeights(DType type, int64_t vocab, uint32_t seed)
      : type_(type), vocab_(vocab), random_(seed) {}

  struct Tensor {
    std::string name;
    DType dtype;
    Shape shape;
    std::vector<uint8_t> bytes;
  };

  Result<ops::Matrix> matrix(const arch::TensorRow& row, int64_t layer, int64_t rows, int64_t cols,
                             int64_t) override {
    if (row.optional && !keep_optional_) return ops::Matrix{};
    // A vocabulary's size is free; blocked types need rows of whole blocks.
    DType type = cols % 32 == 0 ? type_ : DType::kF32;
    add(row, layer, type, Shape{row.of > 0 ? row.of : rows, cols},
        1.0f / std::sqrt(static_cast<float>(cols)));
    ops::Matrix out;
    out.packed.rows = rows;
    out.packed.cols = cols;
    return out;
  }
  Result<ops::Vector> vector(const arch::TensorRow& row, int64_t layer, int64_t n,
                             int64_t) override {
    if (row.optional && !keep_optional_) return ops::Vector{};
    add(row, layer, DType::kF32, Shape{row.of > 0 ? row.of : n}, 0.2f, 1.0f);
    const auto* data = reinterpret_cast<const float*>(tensors.back()->bytes.data());
    return ops::Vector{data, n};
  }
  Result<ops::ExpertMatrices> experts(const arch::ExpertRow& row, int64_t layer, int64_t n,
                                      int64_t rows, int64_t cols) override {
    const DType type = cols % 32 == 0 ? type_ : DType::kF32;
    add({row.gguf, row.hugging_face}, layer, type, Shape{n, rows, cols},
        1.0f / std::sqrt(static_cast<float>(cols)));
    ops::ExpertMatrices out;
    out.n = n;
    out.first.rows = rows;
    out.first.cols = cols;
    return out;
  }
  Result<int64_t> rows_of(const arch::TensorRow&) override { return vocab_; }

  // Optional tensors are made too (divisors of frequencies among them are near 1, so valid).
  void keep_optional(bool keep) { keep_optional_ = keep; }

  std::vector<std::unique_ptr<Tensor>> tensors;

 private:
  void add(const arch::TensorRow& row, int64_t layer, DType type, const Shape& shape, float spread,
           float centre = 0) {
    if (row.first > 0) return;  // a part of the tensor that was made last
    std::string name(row.gguf);
    if (const size_t at = name.find("{l}"); at != std::string::npos) {
      name.replace(at, 3, std::to_string(layer));
    }
    auto tensor = std::make_unique<Tensor>();
    tensor->name = name;
    tensor->dtype = type;
    tensor->shape = shape;
    fill(*tensor, spread, centre);
    tensors.push_back(std::move(tensor));
  }

  void fill(Tensor& tensor, float spread, float centre) {
    const auto n = static_cast<size_t>(tensor.shape.elements());
    tensor.bytes.resize(dtype_bytes(tensor.dtype, n));
    std::normal_distribution<float> normal(centre, spread);
    std::uniform_int_distribution<int> byte(0, 255);
    const auto half = [&](float value) { return f32_to_f16(value); };
    uint8_t* out = tensor.bytes.data();
    switch (tensor.dtype) {
      case DType::kF32:
        for (size_t i = 0; i < n; ++i) reinterpret_cast<float*>(out)[i] = normal(random_);
        break;
      case DType::kF16:
        for (size_t i = 0; i < n; ++i) {
          reinterpret_cast<uint16_t*>(out)[i] = half(normal(random_));
        }
        break;
      case DType::kBF16:
        for (size_t i = 0; i < n; ++i) {
          reinterpret_cast<uint16_t*>(out)[i] = f32_to_bf16(normal(random_));
        }
        break;
      case DType::kQ8_0:
        for (size_t b = 0; b < n / 32; ++b) {
          auto& block = reinterpret_cast<BlockQ8_0*>(out)[b];
          block.d = half(spread / 64);
          for (auto& q : block.q) q = static_cast<int8_t>(byte(random_) - 128);
        }
        break;
      case DType::kQ4_0:
        for (size_t b = 0; b < n / 32; ++b) {
          auto& block = reinterpret_cast<BlockQ4_0*>(out)[b];
          block.d = half(spread / 4);
          for (auto& q : block.q) q = static_cast<uint8_t>(byte(random_));
        }
        break;
      case DType::kQ4_1:
        for (size_t b = 0; b < n / 32; ++b) {
          auto& block = reinterpret_cast<BlockQ4_1*>(out)[b];
          block.d = half(spread / 4);
          block.m = half(-spread * 2);
          for (auto& q : block.q) q = static_cast<uint8_t>(byte(random_));
        }
        break;
      case DType::kQ5_0:
        for (size_t b = 0; b < n / 32; ++b) {
          auto& block = reinterpret_cast<BlockQ5_0*>(out)[b];
          block.d = half(spread / 8);
          for (auto& q : block.qh) q = static_cast<uint8_t>(byte(random_));
          for (auto& q : block.q) q = static_cast<uint8_t>(byte(random_));
        }
        break;
      case DType::kQ5_1:
        for (size_t b = 0; b < n / 32; ++b) {
          auto& block = reinterpret_cast<BlockQ5_1*>(out)[b];
          block.d = half(spread / 8);
          block.m = half(-spread * 2);
          for (auto& q : block.qh) q = static_cast<uint8_t>(byte(random_));
          for (auto& q : block.q) q = static_cast<uint8_t>(byte(random_));
        }
        break;
      case DType::kIQ4_NL:
        for (size_t b = 0; b < n / 32; ++b) {
          auto& block = reinterpret_cast<BlockIQ4_NL*>(out)[b];
          block.d = half(spread / 64);
          for (auto& q : block.q) q = static_cast<uint8_t>(byte(random_));
        }
        break;
      case DType::kMXFP4:
        for (size_t b = 0; b < n / 32; ++b) {
          auto& block = reinterpret_cast<BlockMXFP4*>(out)[b];
          block.e = static_cast<uint8_t>(128 + std::ilogb(spread / 6));
          for (auto& q : block.q) q = static_cast<uint8_t>(byte(random_));
        }
        break;
      default:
        break;
    }
  }

  DType type_;
  int64_t vocab_;
  std::mt19937 random_;
  bool keep_optional_ = true;
};

// The vocabulary of the tiny models: ids 0 … 255 are the bytes, then three control tokens.
inline constexpr int32_t kEndOfText = 256, kTurnStart = 257, kTurnEnd = 258;

inline void add_byte_vocabulary(formats::GgufWriter& writer) {
  // The 256 byte tokens in GPT-2's spelling (bytes that do not print are moved to U+0100 on), then
  // three control tokens.
  std::vector<std::string> tokens;
  std::vector<int64_t> types;
  uint32_t moved = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool prints = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    std::string text;
    const uint32_t c = prints ? b : moved++;
    if (c < 0x80) {
      text += static_cast<char>(c);
    } else {
      text += static_cast<char>(0xC0 | c >> 6);
      text += static_cast<char>(0x80 | (c & 0x3F));
    }
    tokens.push_back(text);
    types.push_back(1);
  }
  for (const char* control : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    tokens.push_back(control);
    types.push_back(3);
  }
  writer.add("tokenizer.ggml.model", std::string("gpt2"));
  writer.add("tokenizer.ggml.pre", std::string("gpt-2"));
  writer.add("tokenizer.ggml.tokens", tokens);
  writer.add("tokenizer.ggml.token_type", types);
  writer.add("tokenizer.ggml.merges", std::vector<std::string>{});
  writer.add_u32("tokenizer.ggml.eos_token_id", 258);
}

// A whole model: the weights above and a byte-level vocabulary of `vocab` ≥ 260 tokens.
inline std::shared_ptr<const model::LoadedModel> tiny_model(const arch::Architecture& architecture,
                                                            const Metadata& config, DType type,
                                                            ThreadPool& pool, bool keep_optional,
                                                            std::string* error) {
  constexpr int64_t kVocab = 263;
  RandomWeights weights(type, kVocab, 7);
  weights.keep_optional(keep_optional);
  auto probe = architecture.load(config, weights);
  if (!probe.ok()) {
    *error = probe.error().message;
    return nullptr;
  }
  formats::GgufWriter writer;
  for (const auto& [key, value] : config.entries()) writer.add(key, value);
  add_byte_vocabulary(writer);
  for (const auto& tensor : weights.tensors) {
    writer.add_tensor(tensor->name, tensor->dtype, tensor->shape, tensor->bytes);
  }
  // The parsed file points into these bytes: they live as long as the model.
  struct Owner {
    std::vector<uint8_t> bytes;
    std::shared_ptr<const model::LoadedModel> model;
  };
  auto owner = std::make_shared<Owner>();
  owner->bytes = writer.to_bytes();
  auto file = formats::parse_gguf(owner->bytes, "tiny");
  if (!file.ok()) {
    *error = file.error().message;
    return nullptr;
  }
  auto loaded = model::LoadedModel::load(*file, pool, {});
  if (!loaded.ok()) {
    *error = loaded.error().message;
    return nullptr;
  }
  owner->model = *loaded;
  return {owner, owner->model.get()};
}

}  // namespace cutaway::testing
