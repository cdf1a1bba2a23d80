// Models from anywhere: an error that says what is wrong, or a model that writes the same tokens
// twice. gguf_fuzz shows what the reader holds; this goes on to the tokenizer, the architecture,
// the packed weights, the forward pass and the loop.
//
// Input: byte 0 chooses a small model of tests/golden (that of each architecture, then some types),
// or from 240 on says that the rest is a whole GGUF file. What follows are edits of that model, one
// after another: a byte says which, then its arguments (below). They change what a writer of a file
// decides: values and kinds of metadata, names, types and shapes of tensors, their bytes.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "formats/gguf.h"
#include "inference/decoder.h"
#include "model/loaded_model.h"

using namespace cutaway;  // NOLINT

namespace {

constexpr const char* kBases[] = {"llama-gqa3-tied",
                                  "llama-rope-yarn",
                                  "llama-q4_0",
                                  "llama-iq4_nl",
                                  "qwen2-mxfp4",
                                  "qwen2-tied",
                                  "qwen3-gqa-head-dim-16",
                                  "gemma2-window",
                                  "gemma3-local-base-scaled",
                                  "olmo2-mha",
                                  "smollm3-mqa-untied-yarn",
                                  "granite-multipliers",
                                  "phi3-window",
                                  "phi3-longrope-short",
                                  "gpt2-small",
                                  "mixtral-8-use-2",
                                  "qwen2moe-6-use-2",
                                  "qwen3moe-16-use-8-tied"};

std::vector<uint8_t> read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  CUTAWAY_CHECK(!bytes.empty());
  return bytes;
}

struct Base {
  std::vector<uint8_t> bytes;
  std::shared_ptr<const ModelFile> file;
};

const Base& base(size_t index) {
  static std::array<Base, std::size(kBases)> all;
  Base& out = all[index % std::size(kBases)];
  if (!out.file) {
    out.bytes = read_bytes(std::string(CUTAWAY_SOURCE_DIR "/tests/golden/") +
                           kBases[index % std::size(kBases)] + ".gguf");
    out.file = formats::parse_gguf(out.bytes, "base.gguf").value();
  }
  return out;
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  template <typename T>
  T number() {
    T value{};
    const size_t n = std::min(size_, sizeof value);
    std::memcpy(&value, data_, n);
    data_ += n;
    size_ -= n;
    return value;
  }
  std::string text() {
    const size_t n = std::min<size_t>(byte() % 64, size_);
    std::string out(reinterpret_cast<const char*>(data_), n);
    data_ += n;
    size_ -= n;
    return out;
  }
  std::span<const uint8_t> rest() const { return {data_, size_}; }

 private:
  const uint8_t* data_;
  size_t size_;
};

struct Tensor {
  std::string name;
  DType dtype;
  Shape shape;
  std::vector<uint8_t> bytes;
};

// A model as its writer sees it.
struct Draft {
  std::vector<std::pair<std::string, MetaValue>> entries;
  std::vector<Tensor> tensors;

  explicit Draft(const Base& base) {
    for (const auto& entry : base.file->metadata.entries()) entries.push_back(entry);
    for (const StoredTensor& stored : base.file->tensors) {
      const auto bytes = std::span(base.bytes).subspan(stored.offset, stored.size);
      tensors.push_back({stored.name, stored.dtype, stored.shape, {bytes.begin(), bytes.end()}});
    }
  }

  MetaValue value(Input& in) {
    switch (in.byte() % 7) {
      case 0:
        return static_cast<int64_t>(in.number<int8_t>());
      case 1:
        return in.number<int64_t>();
      case 2:
        return static_cast<uint64_t>(in.number<uint32_t>());
      case 3:
        return static_cast<double>(in.number<float>());
      case 4:
        return in.byte() % 2 == 1;
      case 5:
        return in.text();
      default:
        return std::vector<std::string>{in.text(), in.text()};
    }
  }

  // Bytes of the right size for a tensor whose type or shape has changed.
  static void fit(Tensor& tensor) {
    const auto n = static_cast<size_t>(tensor.shape.elements());
    tensor.bytes.resize(dtype_bytes(tensor.dtype, n), 0x3c);
  }

  void edit_tensor(Input& in, uint8_t what) {
    if (tensors.empty()) return;
    Tensor& tensor = tensors[in.byte() % tensors.size()];
    switch (what) {
      case 0:
        tensor.name = in.text();
        break;
      case 1: {  // one dimension more, less, or another size
        std::vector<int64_t> dims;
        for (int i = 0; i < tensor.shape.rank(); ++i) dims.push_back(tensor.shape[i]);
        const size_t axis = in.byte() % dims.size();
        dims[axis] = std::clamp<int64_t>(dims[axis] + in.number<int8_t>(), 1, 4096);
        tensor.shape = Shape(std::span<const int64_t>(dims));
        const bool blocks = tensor.shape[tensor.shape.rank() - 1] % 32 == 0;
        if (!blocks && tensor.dtype != DType::kF16) tensor.dtype = DType::kF32;
        fit(tensor);
        break;
      }
      case 2: {
        constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16,
                                    DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                                    DType::kQ5_0, DType::kQ5_1, DType::kIQ4_NL};
        const DType type = kTypes[in.byte() % std::size(kTypes)];
        if (tensor.shape[tensor.shape.rank() - 1] % 32 != 0) return;
        tensor.dtype = type;
        fit(tensor);
        break;
      }
      case 3: {  // some bytes: numbers that are none, among others
        const uint32_t at = in.number<uint32_t>();
        const uint32_t bits = in.number<uint32_t>();
        const size_t n = std::min<size_t>(tensor.bytes.size(), sizeof bits);
        if (n > 0) std::memcpy(&tensor.bytes[at % (tensor.bytes.size() - n + 1)], &bits, n);
        break;
      }
      case 4:
        std::fill(tensor.bytes.begin(), tensor.bytes.end(), in.byte());
        break;
      default:
        tensors.erase(tensors.begin() + (&tensor - tensors.data()));
    }
  }

  void edit(Input& in) {
    const uint8_t what = in.byte();
    if (what % 2 == 0) return edit_tensor(in, what / 2 % 6);
    if (entries.empty()) return;
    auto& entry = entries[in.byte() % entries.size()];
    switch (what / 2 % 4) {
      case 0:
        entry.second = value(in);
        break;
      case 1:
        entry.first = in.text();
        break;
      case 2:  // one item of a list
        if (auto* tokens = std::get_if<std::vector<std::string>>(&entry.second);
            tokens != nullptr && !tokens->empty()) {
          (*tokens)[in.number<uint16_t>() % tokens->size()] = in.text();
        } else if (auto* numbers = std::get_if<std::vector<int64_t>>(&entry.second);
                   numbers != nullptr && !numbers->empty()) {
          (*numbers)[in.number<uint16_t>() % numbers->size()] = in.number<int32_t>();
        }
        break;
      default:
        entries.erase(entries.begin() + (&entry - entries.data()));
    }
  }

  // Empty where the writer itself refuses.
  std::vector<uint8_t> to_bytes() const {
    formats::GgufWriter writer;
    for (const auto& [key, value] : entries) writer.add(key, value);
    for (const Tensor& t : tensors) writer.add_tensor(t.name, t.dtype, t.shape, t.bytes);
    return writer.check().ok() ? writer.to_bytes() : std::vector<uint8_t>();
  }
};

std::string answer(const model::LoadedModel& model, ThreadPool& pool,
                   const kernels::KernelTable& table) {
  const arch::ModelShape& m = model.shape();
  kv::PagePool pages({m.n_layers, m.n_kv_heads, m.d_head, m.d_head, kernels::KvType::kF16}, 2);
  inference::Runner runner(model, table, pool, false);
  inference::Decoder decoder(runner, model.tokenizer());
  inference::SequenceState sequence(pages);
  const auto prompt = model.tokenizer()->encode_ids("the hat <|im_end|> 1", true, true);
  if (!prompt.ok()) return prompt.error().message;
  inference::DecodeOptions options;
  options.context = 32;
  options.max_tokens = 3;
  options.top_logprobs = 2;
  options.ledger = true;
  std::string out;
  const auto outcome =
      decoder.generate(sequence, *prompt, options, [&](const inference::Choice& c) {
        out += std::to_string(c.id) + " ";
        return true;
      });
  if (!outcome.ok()) {
    CUTAWAY_CHECK(!outcome.error().message.empty());
    return outcome.error().message;
  }
  return out + outcome->logits_hash.hex();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static ThreadPool pool(1);
  static const kernels::KernelTable& table = *kernels::select_table("")->table;
  Input in(data, size);
  const uint8_t first = in.byte();
  std::vector<uint8_t> bytes;
  if (first >= 240) {
    bytes.assign(in.rest().begin(), in.rest().end());
  } else {
    Draft draft(base(first));
    for (int n = 0; n < 16 && !in.empty(); ++n) draft.edit(in);
    bytes = draft.to_bytes();
    if (bytes.empty()) return 0;
  }
  const auto file = formats::parse_gguf(bytes, "fuzz.gguf");
  if (!file.ok()) return 0;
  const auto model = model::LoadedModel::load(*file, pool, {});
  if (!model.ok()) {
    CUTAWAY_CHECK(!model.error().message.empty());
    return 0;
  }
  if ((*model)->chat_template() != nullptr) {
    text::ChatTemplate::Input chat;
    chat.messages = Json::array({{{"role", "user"}, {"content", "hi"}}});
    const auto rendered = (*model)->chat_template()->render(chat);
    CUTAWAY_CHECK(rendered.ok() || !rendered.error().message.empty());
  }
  const std::string once = answer(**model, pool, table);
  CUTAWAY_CHECK(once == answer(**model, pool, table));
  return 0;
}
