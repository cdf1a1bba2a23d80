// The forms in which files hold experts give one model: stacked, gate and up fused, one tensor an
// expert; and what is wrong with a form is named.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "tests/support/tiny_model.h"

namespace cutaway {
namespace {

using ::testing::HasSubstr;
using Tensor = testing::RandomWeights::Tensor;
using Tensors = std::vector<Tensor>;

Tensor part_of(const Tensor& stack, std::string name, Shape shape, size_t begin, size_t size) {
  const auto first = stack.bytes.begin() + static_cast<int64_t>(begin);
  return {std::move(name), stack.dtype, shape, {first, first + static_cast<int64_t>(size)}};
}

// "blk.1.ffn_gate_exps.weight" as blk.1.ffn_gate.0.weight, blk.1.ffn_gate.1.weight, …
Tensors one_an_expert(const Tensors& stacked) {
  Tensors out;
  for (const Tensor& t : stacked) {
    const size_t at = t.name.find("_exps");
    if (at == std::string::npos) {
      out.push_back(t);
      continue;
    }
    const size_t size = t.bytes.size() / static_cast<size_t>(t.shape[0]);
    for (int64_t e = 0; e < t.shape[0]; ++e) {
      const std::string name = t.name.substr(0, at) + "." + std::to_string(e) + ".weight";
      out.push_back(
          part_of(t, name, Shape{t.shape[1], t.shape[2]}, static_cast<size_t>(e) * size, size));
    }
  }
  return out;
}

// Gate and up of a layer as blk.1.ffn_gate_up_exps.weight, expert by expert.
Tensors fused(const Tensors& stacked) {
  Tensors out;
  for (const Tensor& t : stacked) {
    if (t.name.find("ffn_up_exps") != std::string::npos) continue;
    const size_t at = t.name.find("gate_exps");
    if (at == std::string::npos) {
      out.push_back(t);
      continue;
    }
    const std::string stem = t.name.substr(0, at);
    const auto up = std::find_if(stacked.begin(), stacked.end(), [&](const Tensor& other) {
      return other.name == stem + "up_exps.weight";
    });
    Tensor both{
        stem + "gate_up_exps.weight", t.dtype, Shape{t.shape[0], 2 * t.shape[1], t.shape[2]}, {}};
    const auto size = static_cast<int64_t>(t.bytes.size()) / t.shape[0];
    for (int64_t e = 0; e < t.shape[0]; ++e) {
      for (const Tensor* half : {&t, &*up}) {
        const auto first = half->bytes.begin() + e * size;
        both.bytes.insert(both.bytes.end(), first, first + size);
      }
    }
    out.push_back(std::move(both));
  }
  return out;
}

const arch::Architecture& mixtral() { return **arch::find_architecture("mixtral"); }

class ExpertForms : public ::testing::Test {
 protected:
  void SetUp() override {
    config_ = mixtral().tiny_configs().front();
    testing::RandomWeights weights(DType::kQ8_0, 263, 7);
    weights.keep_optional(false);
    ASSERT_TRUE(mixtral().load(config_, weights).ok());
    for (const auto& tensor : weights.tensors) stacked_.push_back(*tensor);
  }

  Result<std::shared_ptr<const model::LoadedModel>> load(const Tensors& tensors) {
    formats::GgufWriter writer;
    for (const auto& [key, value] : config_.entries()) writer.add(key, value);
    testing::add_byte_vocabulary(writer);
    for (const Tensor& t : tensors) writer.add_tensor(t.name, t.dtype, t.shape, t.bytes);
    bytes_ = writer.to_bytes();
    CUTAWAY_ASSIGN(auto file, formats::parse_gguf(bytes_, "tiny"));
    return model::LoadedModel::load(file, pool_, {});
  }
  std::string error_of(const Tensors& tensors) {
    const auto loaded = load(tensors);
    return loaded.ok() ? "" : loaded.error().message;
  }
  static Tensor& named(Tensors& tensors, const std::string& name) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const Tensor& t) { return t.name == name; });
    EXPECT_NE(found, tensors.end()) << name;
    return *found;
  }

  Metadata config_;
  Tensors stacked_;
  std::vector<uint8_t> bytes_;  // of the file that was loaded last
  ThreadPool pool_{2};
};

TEST_F(ExpertForms, GiveTheSameWeights) {
  const auto plain = load(stacked_);
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  EXPECT_EQ((*plain)->architecture(), "mixtral");  // though the file says llama
  EXPECT_EQ((*plain)->file().metadata.string("general.architecture").value(), "llama");
  const Hash128 expected = (*plain)->packed_hash();
  const uint64_t parameters = (*plain)->parameters();
  for (const Tensors& form : {one_an_expert(stacked_), fused(stacked_)}) {
    const auto loaded = load(form);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    EXPECT_EQ((*loaded)->packed_hash(), expected);
    EXPECT_EQ((*loaded)->parameters(), parameters);
  }
}

TEST_F(ExpertForms, AreNotDoubledInMemory) {
  const auto loaded = load(stacked_);
  ASSERT_TRUE(loaded.ok());
  uint64_t stored = 0;
  for (const StoredTensor& tensor : (*loaded)->file().tensors) stored += tensor.size;
  EXPECT_LE((*loaded)->packed_bytes(), stored + stored / 16);  // rows are padded to sixteen
}

TEST_F(ExpertForms, WhatIsWrongIsNamed) {
  Tensors wrong = one_an_expert(stacked_);
  named(wrong, "blk.1.ffn_up.3.weight").name = "blk.1.ffn_up.9.weight";
  EXPECT_THAT(error_of(wrong), HasSubstr("tensor blk.1.ffn_up.3.weight is missing"));

  wrong = stacked_;
  named(wrong, "blk.0.ffn_down_exps.weight").shape = Shape{8, 32, 192};
  EXPECT_THAT(
      error_of(wrong),
      HasSubstr("tensor blk.0.ffn_down_exps.weight has shape [8,32,192], expected [8,64,96]"));

  wrong = one_an_expert(stacked_);
  Tensor& other = named(wrong, "blk.0.ffn_gate.2.weight");
  other.dtype = DType::kF32;
  other.bytes.assign(static_cast<size_t>(other.shape.elements()) * 4, 0);
  EXPECT_THAT(error_of(wrong), HasSubstr("blk.0.ffn_gate.2.weight is F32, but "
                                         "blk.0.ffn_gate.0.weight is Q8_0"));

  wrong = stacked_;
  Tensor& stack = named(wrong, "blk.1.ffn_gate_exps.weight");
  const uint16_t infinity = 0x7C00;
  const size_t expert = stack.bytes.size() / 8;  // the scale of expert 5's first block
  std::memcpy(stack.bytes.data() + 5 * expert, &infinity, sizeof infinity);
  EXPECT_THAT(error_of(wrong), HasSubstr("tensor blk.1.ffn_gate_exps.weight holds a value that is "
                                         "not finite (NaN or infinity) in row 0 of expert 5"));

  wrong = stacked_;
  wrong.push_back(part_of(stacked_.front(), "blk.0.ffn_gate.weight", Shape{1, 32}, 0, 34));
  EXPECT_THAT(error_of(wrong), HasSubstr("does not use: blk.0.ffn_gate.weight"));
}

TEST_F(ExpertForms, SettingsOutOfRangeAreNamed) {
  const auto with = [&](const char* key, MetaValue value) {
    Metadata changed;
    for (const auto& [name, old] : config_.entries())
      changed.insert(name, name == key ? value : old);
    if (!changed.has(key)) changed.insert(key, value);
    config_ = changed;
    return error_of(stacked_);
  };
  EXPECT_THAT(with("llama.expert_used_count", int64_t{9}),
              HasSubstr("llama.expert_used_count is 9"));
  EXPECT_THAT(with("llama.expert_used_count", int64_t{0}),
              HasSubstr("llama.expert_used_count is 0"));
  with("llama.expert_used_count", int64_t{2});
  EXPECT_THAT(with("llama.expert_gating_func", int64_t{2}),
              HasSubstr("llama.expert_gating_func is 2, which this version does not run"));
  with("llama.expert_gating_func", int64_t{1});
  EXPECT_THAT(with("llama.expert_weights_scale", 2.5),
              HasSubstr("llama.expert_weights_scale is 2.5"));
  EXPECT_EQ(with("llama.expert_weights_scale", 1.0), "");
  EXPECT_THAT(with("llama.expert_count", int64_t{7}), HasSubstr("expected [7,64]"));
}

}  // namespace
}  // namespace cutaway
