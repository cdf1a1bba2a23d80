#include "model/synthesis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <memory>

#include "formats/quantize_row.h"
#include "model/random_rows.h"
#include "trace/trace.h"

namespace cutaway::model {
namespace {

using Kind = SynthesisTensor::Kind;

constexpr float kGainSpread = 0.1f, kBiasSpread = 0.1f;

DType stored_type(const SynthesisTensor& tensor, DType type) {
  if (tensor.kind != Kind::kMatrix) return DType::kF32;
  return formats::fitting_type(type, tensor.shape[tensor.shape.rank() - 1]);
}

// Answers every request of an architecture's loader, and remembers what was asked for.
class Recorder final : public arch::WeightSource {
 public:
  Recorder(const arch::PublishedShape& shape, std::vector<SynthesisTensor>& out)
      : shape_(shape), out_(out) {}

  Result<ops::Matrix> matrix(const arch::TensorRow& row, int64_t layer, int64_t rows, int64_t cols,
                             int64_t) override {
    CUTAWAY_SPAN(span, "model::Recorder::matrix", "tensor", row.gguf, "layer", layer);
    ops::Matrix matrix;
    if (!present(row)) return matrix;
    add(row, layer, row.stays_f32 ? Kind::kRouter : Kind::kMatrix,
        Shape{row.of > 0 ? row.of : rows, cols});
    matrix.packed.rows = rows;
    matrix.packed.cols = cols;
    CUTAWAY_OUT(span, "rows", rows, "cols", cols);
    return matrix;
  }

  Result<ops::Vector> vector(const arch::TensorRow& row, int64_t layer, int64_t n,
                             int64_t) override {
    CUTAWAY_SPAN(span, "model::Recorder::vector", "tensor", row.gguf, "layer", layer);
    if (!present(row)) return ops::Vector{};
    const auto constant = shape_.constants.find(std::string(row.gguf));
    const bool computed = constant != shape_.constants.end();
    add(row, layer,
        computed                      ? Kind::kConstant
        : row.stays_f32               ? Kind::kRouter
        : row.gguf.ends_with(".bias") ? Kind::kBias
                                      : Kind::kGain,
        Shape{row.of > 0 ? row.of : n});
    CUTAWAY_OUT(span, "n", n);
    if (!computed) {
      given_.emplace_back(static_cast<size_t>(n), 1.0f);
      return ops::Vector{given_.back().data(), n};
    }
    out_.back().values = constant->second;
    return ops::Vector{constant->second.data(), n};
  }

  Result<ops::ExpertMatrices> experts(const arch::ExpertRow& row, int64_t layer, int64_t n,
                                      int64_t rows, int64_t cols) override {
    CUTAWAY_SPAN(span, "model::Recorder::experts", "tensor", row.gguf, "layer", layer);
    add({row.gguf, row.hugging_face}, layer, Kind::kMatrix, Shape{n, rows, cols});
    ops::ExpertMatrices out;
    out.n = n;
    out.first.rows = rows;
    out.first.cols = cols;
    CUTAWAY_OUT(span, "n", n, "rows", rows, "cols", cols);
    return out;
  }

  Result<int64_t> rows_of(const arch::TensorRow&) override { return shape_.vocab; }

 private:
  bool present(const arch::TensorRow& row) const {
    return !row.optional || shape_.constants.contains(std::string(row.gguf)) ||
           std::find(shape_.optional.begin(), shape_.optional.end(), row.gguf) !=
               shape_.optional.end();
  }

  void add(const arch::TensorRow& row, int64_t layer, Kind kind, const Shape& shape) {
    std::string name(row.gguf);
    if (const size_t at = name.find("{l}"); at != std::string::npos) {
      name.replace(at, 3, std::to_string(layer));
    }
    // Rows that share a tensor ask for it one after the other.
    if (row.first > 0) return;
    out_.push_back({std::move(name), kind, shape, {}});
  }

  const arch::PublishedShape& shape_;
  std::vector<SynthesisTensor>& out_;
  std::list<std::vector<float>> given_;  // what a loader may look at
};

Result<Metadata> with_layers(const arch::PublishedShape& shape, int64_t layers) {
  CUTAWAY_ASSIGN(const std::string name_in_file, shape.metadata.string("general.architecture"));
  const std::string key = name_in_file + ".block_count";
  CUTAWAY_ASSIGN(const int64_t all, shape.metadata.integer(key, 1, INT32_MAX));
  if (layers < 0 || layers > all) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("layers is {}, must be 1 to the {} of {}", layers, all, shape.name),
                 "layers"};
  }
  Metadata out;
  for (const auto& [name, value] : shape.metadata.entries()) {
    const bool changed = name == key && layers > 0;
    out.insert(name, changed ? MetaValue(static_cast<uint64_t>(layers)) : value);
  }
  return out;
}

// One part of a tensor after the other: rows that the pool's threads make, then hand on.
class Producer {
 public:
  Producer(const SynthesisTensor& tensor, DType type, uint64_t seed, ThreadPool& pool)
      : tensor_(tensor),
        type_(stored_type(tensor, type)),
        random_(seed, tensor.name),
        pool_(pool),
        cols_(tensor.shape[tensor.shape.rank() - 1]),
        row_bytes_(dtype_bytes(type_, static_cast<size_t>(cols_))) {
    if (tensor.kind == Kind::kMatrix || tensor.kind == Kind::kRouter)
      spread_ = 1 / std::sqrt(static_cast<float>(cols_));
    if (tensor.kind == Kind::kBias) spread_ = kBiasSpread;
    if (tensor.kind == Kind::kGain) {
      spread_ = kGainSpread;
      centre_ = 1;
    }
  }

  template <typename Sink>
  Status run(const Sink& sink) const {
    if (tensor_.kind == Kind::kConstant) {
      return sink(std::span(reinterpret_cast<const uint8_t*>(tensor_.values.data()),
                            tensor_.values.size() * sizeof(float)));
    }
    constexpr size_t kPartBytes = size_t{8} << 20, kChunkBytes = size_t{64} << 10;
    const int64_t rows = tensor_.shape.elements() / cols_;
    const int64_t part =
        std::clamp<int64_t>(static_cast<int64_t>(kPartBytes / row_bytes_), 1, rows);
    const int64_t step = std::max<int64_t>(static_cast<int64_t>(kChunkBytes / row_bytes_), 1);
    std::vector<uint8_t> bytes(static_cast<size_t>(part) * row_bytes_);
    for (int64_t begin = 0; begin < rows; begin += part) {
      const int64_t end = std::min(begin + part, rows);
      pool_.parallel_for(
          static_cast<size_t>((end - begin + step - 1) / step), [&](size_t chunk) noexcept {
            const int64_t first = begin + static_cast<int64_t>(chunk) * step;
            const int64_t last = std::min(first + step, end);
            for (int64_t row = first; row < last; ++row) {
              make_row(row, bytes.data() + static_cast<size_t>(row - begin) * row_bytes_);
            }
          });
      CUTAWAY_TRY(sink(
          std::span<const uint8_t>(bytes).first(static_cast<size_t>(end - begin) * row_bytes_)));
    }
    return {};
  }

 private:
  void make_row(int64_t row, uint8_t* out) const noexcept {
    constexpr int64_t kStep = 1024;  // a multiple of every type's block
    float values[kStep];
    for (int64_t i = 0; i < cols_; i += kStep) {
      const int64_t n = std::min(kStep, cols_ - i);
      random_.fill(row, i, n, centre_, spread_, values);
      formats::quantize_row(type_, values, n, out);
      out += dtype_bytes(type_, static_cast<size_t>(n));
    }
  }

  const SynthesisTensor& tensor_;
  DType type_;
  RandomTensor random_;
  ThreadPool& pool_;
  int64_t cols_;
  size_t row_bytes_;
  float centre_ = 0, spread_ = 0;
};

// GPT-2's spelling of a byte: those that do not print are moved to U+0100 and on.
std::vector<std::string> byte_tokens() {
  std::vector<std::string> out;
  uint32_t moved = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const uint32_t c = prints ? byte : moved++;
    if (c < 0x80) {
      out.emplace_back(1, static_cast<char>(c));
    } else {
      out.push_back({static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))});
    }
  }
  return out;
}

void add_vocabulary(int64_t size, formats::GgufWriter& writer) {
  constexpr int64_t kNormal = 1, kControl = 3;
  std::vector<std::string> tokens = byte_tokens();
  const std::string space = tokens[' '];
  tokens.push_back(space + space);
  std::vector<int64_t> types(tokens.size(), kNormal);
  const auto begin = static_cast<uint32_t>(tokens.size());
  for (const char* control : {"<|begin|>", "<|end|>"}) {
    tokens.emplace_back(control);
    types.push_back(kControl);
  }
  while (static_cast<int64_t>(tokens.size()) < size) {
    tokens.push_back(fmt::format("<|pad_{}|>", tokens.size()));
    types.push_back(kNormal);
  }
  writer.add("tokenizer.ggml.model", std::string("gpt2"));
  writer.add("tokenizer.ggml.pre", std::string("gpt-2"));
  writer.add("tokenizer.ggml.tokens", std::move(tokens));
  writer.add("tokenizer.ggml.token_type", std::move(types));
  writer.add("tokenizer.ggml.merges", std::vector<std::string>{space + " " + space});
  writer.add_u32("tokenizer.ggml.bos_token_id", begin);
  writer.add_u32("tokenizer.ggml.eos_token_id", begin + 1);
  writer.add("tokenizer.ggml.add_bos_token", false);
}

}  // namespace

uint64_t Synthesis::tensor_bytes(DType type) const {
  CUTAWAY_SPAN(span, "model::Synthesis::tensor_bytes", "type", dtype_name(type));
  uint64_t bytes = 0;
  for (const SynthesisTensor& tensor : tensors) {
    bytes += dtype_bytes(stored_type(tensor, type), static_cast<size_t>(tensor.shape.elements()));
  }
  CUTAWAY_OUT(span, "bytes", bytes);
  return bytes;
}

Result<Synthesis> plan_synthesis(const arch::Architecture& architecture,
                                 const arch::PublishedShape& shape, int64_t layers) {
  CUTAWAY_SPAN(span, "model::plan_synthesis", "shape", shape.name, "layers", layers);
  Synthesis out;
  out.architecture = architecture.name;
  CUTAWAY_ASSIGN(out.metadata, with_layers(shape, layers));
  Recorder recorder(shape, out.tensors);
  CUTAWAY_ASSIGN(const std::unique_ptr<arch::Transformer> transformer,
                 architecture.load(out.metadata, recorder));
  out.shape = transformer->shape();
  out.tied = std::none_of(out.tensors.begin(), out.tensors.end(),
                          [](const auto& tensor) { return tensor.name == "output.weight"; });
  for (const SynthesisTensor& tensor : out.tensors) {
    if (tensor.kind != Kind::kConstant) {
      out.parameters += static_cast<uint64_t>(tensor.shape.elements());
    }
  }
  CUTAWAY_OUT(span, "tensors", out.tensors.size(), "parameters", out.parameters);
  return out;
}

void add_synthesis_metadata(const Synthesis& synthesis, const std::string& name, DType type,
                            formats::GgufWriter& writer) {
  CUTAWAY_SPAN(span, "model::add_synthesis_metadata", "name", name, "type", dtype_name(type));
  for (const auto& [key, value] : synthesis.metadata.entries()) writer.add(key, value);
  writer.add("general.name", fmt::format("{} {} with random weights", name, dtype_name(type)));
  writer.add("general.description",
             fmt::format("The shape of {}, {} layers, with random weights and a made-up "
                         "vocabulary: for measuring speed; what it writes means nothing",
                         name, synthesis.shape.n_layers));
  add_vocabulary(synthesis.shape.vocab, writer);
}

void add_synthesis_tensors(const Synthesis& synthesis, DType type, uint64_t seed, ThreadPool& pool,
                           const ReportBytes& report, formats::GgufWriter& writer) {
  CUTAWAY_SPAN(span, "model::add_synthesis_tensors", "tensors", synthesis.tensors.size(), "type",
               dtype_name(type), "seed", seed);
  const uint64_t total = synthesis.tensor_bytes(type);
  const auto done = std::make_shared<uint64_t>(0);
  for (const SynthesisTensor& tensor : synthesis.tensors) {
    writer.add_tensor(tensor.name, stored_type(tensor, type), tensor.shape,
                      [&tensor, &pool, type, seed, report, total,
                       done](const formats::GgufWriter::Append& append) -> Status {
                        const Producer producer(tensor, type, seed, pool);
                        return producer.run([&](std::span<const uint8_t> bytes) -> Status {
                          CUTAWAY_TRY(append(bytes));
                          *done += bytes.size();
                          if (report && !report(*done, total)) {
                            return Error{ErrorCode::kCancelled, "writing was cancelled"};
                          }
                          return {};
                        });
                      });
  }
  CUTAWAY_OUT(span, "bytes", total);
}

}  // namespace cutaway::model
