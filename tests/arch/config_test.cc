// What architectures read of a configuration, in GGUF's and in Hugging Face's keys, and what they
// refuse by name.

#include "arch/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "arch/windows.h"
#include "tests/support/tiny_model.h"

namespace cutaway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Metadata metadata(std::vector<std::pair<std::string, MetaValue>> entries) {
  Metadata out;
  for (auto& [key, value] : entries) out.insert(key, std::move(value));
  return out;
}

Metadata gguf(const std::string& architecture,
              std::vector<std::pair<std::string, MetaValue>> entries) {
  Metadata out = metadata({{"general.architecture", architecture}});
  for (auto& [key, value] : entries) out.insert(architecture + "." + key, std::move(value));
  return out;
}

ops::RopeConfig rope_of(const Metadata& metadata, const arch::RopeKeys& keys = {}) {
  const arch::ConfigReader config(metadata);
  auto rope = config.rope(16, keys);
  EXPECT_TRUE(rope.ok()) << rope.error().message;
  return rope.ok() ? *rope : ops::RopeConfig{};
}

std::string rope_error(const Metadata& metadata, const arch::RopeKeys& keys = {}) {
  const arch::ConfigReader config(metadata);
  auto rope = config.rope(16, keys);
  EXPECT_FALSE(rope.ok());
  return rope.ok() ? "" : rope.error().message;
}

TEST(RopeKeys, EachFormThatConfigurationsHadIsRead) {
  const Metadata forms[] = {
      gguf("llama", {{"rope.freq_base", 5e5},
                     {"rope.scaling.type", std::string("linear")},
                     {"rope.scaling.factor", 4.0}}),
      metadata({{"rope_theta", 5e5},
                {"rope_scaling.type", std::string("linear")},
                {"rope_scaling.factor", 4.0}}),
      metadata({{"rope_theta", 5e5},
                {"rope_scaling.rope_type", std::string("linear")},
                {"rope_scaling.factor", 4.0}}),
      metadata({{"rope_parameters.rope_theta", 5e5},
                {"rope_parameters.rope_type", std::string("linear")},
                {"rope_parameters.factor", 4.0}}),
  };
  for (const Metadata& form : forms) {
    const ops::RopeConfig rope = rope_of(form);
    EXPECT_EQ(rope.theta, 5e5);
    EXPECT_EQ(rope.scaling, ops::RopeScaling::kLinear);
    EXPECT_EQ(rope.factor, 4);
    EXPECT_EQ(rope.n_rot, 16);
  }
}

TEST(RopeKeys, ASectionOfRopeParametersIsReadWhereTheArchitectureNamesIt) {
  const Metadata config =
      metadata({{"rope_parameters.full_attention.rope_theta", 1e6},
                {"rope_parameters.full_attention.rope_type", std::string("linear")},
                {"rope_parameters.full_attention.factor", 8.0},
                {"rope_parameters.sliding_attention.rope_theta", 1e4}});
  const ops::RopeConfig rope = rope_of(config, {.hugging_face_section = "full_attention"});
  EXPECT_EQ(rope.theta, 1e6);
  EXPECT_EQ(rope.factor, 8);
}

TEST(RopeKeys, PartOfAHeadIsRotated) {
  EXPECT_EQ(rope_of(gguf("phi3", {{"rope.dimension_count", int64_t{12}}})).n_rot, 12);
  EXPECT_EQ(rope_of(metadata({{"partial_rotary_factor", 0.75}})).n_rot, 12);
  EXPECT_EQ(rope_of(metadata({{"rope_parameters.rope_theta", 1e4},
                              {"rope_parameters.partial_rotary_factor", 0.5}}))
                .n_rot,
            8);
  EXPECT_THAT(rope_error(metadata({{"partial_rotary_factor", 1.5}})), HasSubstr("(0, 1]"));
  EXPECT_THAT(rope_error(metadata({{"partial_rotary_factor", 0.2}})), HasSubstr("even"));
}

TEST(RopeKeys, LongRopeIsReadWhereTheArchitectureHasIt) {
  Metadata config = metadata({{"max_position_embeddings", int64_t{128}},
                              {"rope_scaling.type", std::string("longrope")},
                              {"rope_scaling.short_factor", std::vector<double>(8, 1.5)},
                              {"rope_scaling.long_factor", std::vector<double>(8, 4.0)},
                              {"original_max_position_embeddings", int64_t{32}}});
  ops::RopeConfig rope = rope_of(config, {.long_factors = true});
  EXPECT_EQ(rope.scaling, ops::RopeScaling::kLongRope);
  EXPECT_EQ(rope.divisors, std::vector<float>(8, 1.5f));
  EXPECT_EQ(rope.long_divisors, std::vector<float>(8, 4.0f));
  const arch::ConfigReader reader(config);
  ASSERT_TRUE(reader.finish_long_rope(rope).ok());
  EXPECT_EQ(rope.original_context, 32);
  EXPECT_NEAR(rope.attention_factor, std::sqrt(1 + std::log(4.0) / std::log(32.0)), 1e-12);

  EXPECT_THAT(rope_error(config), HasSubstr("\"longrope\""));
  Metadata few = metadata({{"rope_scaling.type", std::string("longrope")},
                           {"rope_scaling.short_factor", std::vector<double>(7, 1.5)}});
  EXPECT_THAT(rope_error(few, {.long_factors = true}),
              HasSubstr("rope_scaling.short_factor has 7 values, expected 8"));
}

TEST(RopeKeys, UnknownTypesAreErrors) {
  EXPECT_THAT(rope_error(metadata({{"rope_parameters.rope_theta", 1e4},
                                   {"rope_parameters.rope_type", std::string("dynamic")}})),
              HasSubstr("rope_parameters.rope_type is \"dynamic\""));
  EXPECT_THAT(rope_error(gguf("qwen3", {{"rope.scaling.factor", 4.0}})),
              HasSubstr("rope.scaling.type is not there"));
}

arch::LocalLayers layers_of(const Metadata& metadata, int64_t n_layers, int64_t default_window,
                            int64_t period) {
  const arch::ConfigReader config(metadata);
  arch::ModelShape shape;
  shape.n_layers = n_layers;
  auto layers = arch::read_local_layers(config, shape, default_window, period);
  EXPECT_TRUE(layers.ok()) << layers.error().message;
  return layers.ok() ? *layers : arch::LocalLayers{};
}

TEST(LocalLayers, ThePatternIsAPeriodFlagsOrNames) {
  const auto alternating = ElementsAre(true, false, true, false);
  EXPECT_THAT(layers_of(gguf("gemma2", {}), 4, 4096, 2).local, alternating);
  const Metadata period = gguf("gemma3", {{"attention.sliding_window", int64_t{8}},
                                          {"attention.sliding_window_pattern", int64_t{2}}});
  EXPECT_THAT(layers_of(period, 4, 0, 6).local, alternating);
  const Metadata flags = gguf(
      "olmo2", {{"attention.sliding_window", int64_t{8}},
                {"attention.sliding_window_pattern", std::vector<bool>{true, false, true, false}}});
  EXPECT_THAT(layers_of(flags, 4, 0, 4).local, alternating);
  EXPECT_EQ(layers_of(flags, 4, 0, 4).window, 8);
  const std::string local = "sliding_attention", global = "full_attention";
  const Metadata names =
      metadata({{"sliding_window", int64_t{8}},
                {"layer_types", std::vector<std::string>{local, global, local, global}}});
  EXPECT_THAT(layers_of(names, 4, 0, 6).local, alternating);
  // No window: no layer is local.
  EXPECT_THAT(layers_of(gguf("gemma3", {}), 4, 0, 2).local,
              ElementsAre(false, false, false, false));
}

TEST(LocalLayers, APatternOfAnotherLengthOrKindIsAnError) {
  arch::ModelShape shape;
  shape.n_layers = 3;
  const auto error = [&](const Metadata& metadata) {
    const arch::ConfigReader config(metadata);
    auto layers = arch::read_local_layers(config, shape, 8, 2);
    EXPECT_FALSE(layers.ok());
    return layers.ok() ? "" : layers.error().message;
  };
  EXPECT_THAT(
      error(gguf("olmo2", {{"attention.sliding_window_pattern", std::vector<bool>{true, false}}})),
      HasSubstr("has 2 values, expected one for each of 3 layers"));
  EXPECT_THAT(error(metadata(
                  {{"layer_types", std::vector<std::string>{"chunked_attention", "full_attention",
                                                            "full_attention"}}})),
              HasSubstr("\"chunked_attention\""));
}

TEST(GemmaScoreScale, IsOfTheHeadSizeButForTheOddSizeAndWhereTheFileSaysIt) {
  arch::ModelShape shape;
  shape.n_layers = 26;
  shape.d_model = 4608;
  shape.n_heads = 32;
  shape.d_head = 128;
  const auto scale = [&](const Metadata& metadata) {
    const arch::ConfigReader config(metadata);
    return *arch::gemma_score_scale(config, shape, 46);
  };
  EXPECT_FLOAT_EQ(scale(gguf("gemma2", {})), 1 / std::sqrt(128.0f));
  EXPECT_FLOAT_EQ(scale(metadata({{"query_pre_attn_scalar", int64_t{224}}})),
                  1 / std::sqrt(224.0f));
  EXPECT_FLOAT_EQ(scale(gguf("gemma2", {{"attention.scale", 0.25}})), 0.25f);
  shape.n_layers = 46;
  EXPECT_FLOAT_EQ(scale(gguf("gemma2", {})), 1 / std::sqrt(144.0f));
}

// A tiny configuration of the architecture with one more key: the error of its load.
std::string load_error(const std::string& architecture, const std::string& key, MetaValue value) {
  auto found = arch::find_architecture(architecture);
  EXPECT_TRUE(found.ok());
  Metadata config = (*found)->tiny_configs().front();
  config.insert(architecture + "." + key, std::move(value));
  testing::RandomWeights weights(DType::kF32, 263, 7);
  auto loaded = (*found)->load(config, weights);
  EXPECT_FALSE(loaded.ok()) << architecture << ' ' << key;
  return loaded.ok() ? "" : loaded.error().message;
}

TEST(Refusals, SettingsThatWouldChangeTheAnswerAreNamed) {
  for (const char* architecture : {"llama", "qwen2", "qwen3", "smollm3", "granite"}) {
    EXPECT_THAT(load_error(architecture, "attention.sliding_window", int64_t{8}),
                HasSubstr(std::string(architecture) + ".attention.sliding_window is 8"));
  }
  for (const char* architecture : {"gemma2", "gemma3", "olmo2", "phi3"}) {
    EXPECT_THAT(load_error(architecture, "expert_count", int64_t{8}),
                HasSubstr(std::string(architecture) + ".expert_count is 8"));
  }
  EXPECT_THAT(load_error("granite", "rope.scaling.finetuned", false),
              HasSubstr("granite.rope.scaling.finetuned is false"));
  EXPECT_THAT(load_error("gemma3", "final_logit_softcapping", -1.0),
              HasSubstr("gemma3.final_logit_softcapping is -1"));
  EXPECT_THAT(load_error("gpt2", "attention.head_count_kv", int64_t{2}),
              HasSubstr("gpt2.attention.head_count_kv is 2"));
  EXPECT_THAT(load_error("qwen3", "rope.scaling.type", std::string("longrope")),
              HasSubstr("\"longrope\""));
}

TEST(Refusals, AnotherActivationIsNamed) {
  const auto error = [](const std::string& text, ops::Activation activation) {
    const Metadata config = metadata({{"hidden_act", text}});
    const arch::ConfigReader reader(config);
    const Status status = arch::check_activation(reader, activation);
    return status.ok() ? std::string() : status.error().message;
  };
  EXPECT_EQ(error("silu", ops::Activation::kSilu), "");
  EXPECT_EQ(error("gelu_pytorch_tanh", ops::Activation::kGelu), "");
  EXPECT_THAT(error("relu", ops::Activation::kSilu), HasSubstr("hidden_act is \"relu\""));
  // The exact form, by the error function, is another one.
  EXPECT_THAT(error("gelu", ops::Activation::kGelu), HasSubstr("hidden_act is \"gelu\""));
}

}  // namespace
}  // namespace cutaway
