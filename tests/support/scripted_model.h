// A model that writes what a test wants: a real file through the whole engine, no mock. Its
// attention and MLP add nothing, so the logits after a token depend on that token alone: embedding
// row t is the t-th unit vector, and head row n has a 1 where the script says "n follows t".
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/tiny_model.h"

namespace cutaway::testing {

class ScriptedModel {
 public:
  // The ids that greedy decoding writes after a prompt that ends with `after`; each id once, since
  // a token has one successor. After the last one comes <|im_end|> when `ends`, else itself again.
  ScriptedModel(int32_t after, const std::vector<int32_t>& ids, bool ends, ThreadPool& pool,
                int64_t context = 64) {
    constexpr int64_t kVocab = 263, kWidth = 264, kMlp = 32;
    formats::GgufWriter writer;
    const Metadata config = arch::tiny_decoder_metadata("llama", {.n_layers = 1,
                                                                  .n_heads = 1,
                                                                  .n_kv_heads = 1,
                                                                  .d_head = 8,
                                                                  .d_model = kWidth,
                                                                  .d_mlp = kMlp,
                                                                  .context = context});
    for (const auto& [key, value] : config.entries()) writer.add(key, value);
    add_byte_vocabulary(writer);

    std::vector<float> embedding(kVocab * kWidth), head(kVocab * kWidth), ones(kWidth, 1.0f);
    for (int64_t t = 0; t < kVocab; ++t) embedding[static_cast<size_t>(t * kWidth + t)] = 1;
    const auto follows = [&](int32_t next, int32_t current) {
      head[static_cast<size_t>(next * kWidth + current)] = 1;
    };
    int32_t current = after;
    for (const int32_t id : ids) {
      follows(id, current);
      current = id;
    }
    follows(ends ? kTurnEnd : current, current);
    const std::vector<float> zeros(kWidth * kWidth);
    const auto add = [&](const std::string& name, Shape shape, const std::vector<float>& values) {
      const auto bytes = static_cast<size_t>(shape.elements()) * sizeof(float);
      writer.add_tensor(name, DType::kF32, shape,
                        {reinterpret_cast<const uint8_t*>(values.data()), bytes});
    };
    add("token_embd.weight", {kVocab, kWidth}, embedding);
    add("output.weight", {kVocab, kWidth}, head);
    add("output_norm.weight", {kWidth}, ones);
    add("blk.0.attn_norm.weight", {kWidth}, ones);
    add("blk.0.ffn_norm.weight", {kWidth}, ones);
    for (const char* name : {"attn_q", "attn_k", "attn_v"}) {
      add("blk.0." + std::string(name) + ".weight", {8, kWidth}, zeros);
    }
    add("blk.0.attn_output.weight", {kWidth, 8}, zeros);
    add("blk.0.ffn_gate.weight", {kMlp, kWidth}, zeros);
    add("blk.0.ffn_up.weight", {kMlp, kWidth}, zeros);
    add("blk.0.ffn_down.weight", {kWidth, kMlp}, zeros);
    bytes_ = writer.to_bytes();
    auto file = formats::parse_gguf(bytes_, "scripted");
    auto loaded = file.ok() ? model::LoadedModel::load(*file, pool, {})
                            : Result<std::shared_ptr<const model::LoadedModel>>(file.error());
    if (loaded.ok()) {
      model_ = *loaded;
    } else {
      error_ = loaded.error().message;
    }
  }

  const std::shared_ptr<const model::LoadedModel>& model() const { return model_; }
  const std::string& error() const { return error_; }

 private:
  std::vector<uint8_t> bytes_;
  std::shared_ptr<const model::LoadedModel> model_;
  std::string error_;
};

}  // namespace cutaway::testing
