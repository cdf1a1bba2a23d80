// Which tensor gets which type, and what a quantised file keeps of the one that it was made of.
#include "model/quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "formats/gguf_types.h"
#include "formats/quantize_search.h"
#include "kernels/layout.h"

namespace cutaway::model {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kColumns = 512, kRows = 16;

// A file of `layers` layers with rows of `columns`, in memory.
struct Source {
  std::vector<std::unique_ptr<std::vector<float>>> values;
  std::vector<uint8_t> bytes;
  std::shared_ptr<const ModelFile> file;
};

struct Wanted {
  int64_t layers = 16, columns = kColumns, heads = 8, kv_heads = 4, experts = 0;
  bool head = true;
  std::string type = "F32";
};

void add_layer(const Wanted& wanted, int64_t l, std::mt19937& random, Source& out,
               formats::GgufWriter& writer) {
  std::normal_distribution<float> normal;
  const auto add = [&](const std::string& name, const Shape& shape) {
    auto& values = *out.values.emplace_back(std::make_unique<std::vector<float>>());
    for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(normal(random));
    writer.add_tensor(
        name, DType::kF32, shape,
        std::span(reinterpret_cast<const uint8_t*>(values.data()), 4 * values.size()));
  };
  if (l < 0) {
    add("token_embd.weight", {kRows, wanted.columns});
    add("output_norm.weight", {wanted.columns});
    if (wanted.head) add("output.weight", {kRows, wanted.columns});
    return;
  }
  const std::string blk = "blk." + std::to_string(l) + ".";
  add(blk + "attn_norm.weight", {wanted.columns});
  for (const char* name :
       {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
    const bool expert = wanted.experts > 0 && std::string(name).starts_with("ffn");
    if (expert) {
      add(blk + name + "_exps.weight", {wanted.experts, kRows, wanted.columns});
    } else {
      add(blk + name + ".weight", {kRows, wanted.columns});
    }
  }
  add(blk + "attn_q.bias", {kRows});
  if (wanted.experts > 0) add(blk + "ffn_gate_inp.weight", {wanted.experts, wanted.columns});
}

Source make(const Wanted& wanted, const std::function<void(Source&)>& change = {}) {
  Source out;
  formats::GgufWriter writer;
  writer.add("general.architecture", std::string("llama"));
  writer.add_u32("llama.block_count", static_cast<uint32_t>(wanted.layers));
  writer.add_u32("llama.attention.head_count", static_cast<uint32_t>(wanted.heads));
  writer.add_u32("llama.attention.head_count_kv", static_cast<uint32_t>(wanted.kv_heads));
  if (wanted.experts > 0)
    writer.add_u32("llama.expert_count", static_cast<uint32_t>(wanted.experts));
  writer.add_u32("general.file_type", 0);
  writer.add("split.count", uint64_t{1});
  writer.add("some.numbers", std::vector<int64_t>{1, 2, 3});
  std::mt19937 random(4);
  for (int64_t l = -1; l < wanted.layers; ++l) add_layer(wanted, l, random, out, writer);
  if (change) change(out);
  out.bytes = writer.to_bytes();
  auto file = formats::parse_gguf(out.bytes, "source");
  EXPECT_TRUE(file.ok()) << file.error().message;
  out.file = *file;
  return out;
}

QuantizationOptions options_of(const std::string& recipe) {
  QuantizationOptions out;
  auto found = find_recipe(recipe);
  EXPECT_TRUE(found.ok());
  out.recipe = *found;
  return out;
}

std::map<std::string, std::string> types_of(const Source& source,
                                            const QuantizationOptions& options) {
  auto plan = plan_quantization(*source.file, options);
  EXPECT_TRUE(plan.ok()) << plan.error().message;
  std::map<std::string, std::string> out;
  if (!plan.ok()) return out;
  for (const PlannedTensor& tensor : plan->tensors)
    out[tensor.source->name] = dtype_name(tensor.type);
  return out;
}

std::string down(int l) { return "blk." + std::to_string(l) + ".ffn_down.weight"; }
std::string v(int l) { return "blk." + std::to_string(l) + ".attn_v.weight"; }

// The choices of llama.cpp's mixes: facts, written out for sixteen layers.
TEST(QuantizationPlan, MixesSpendBitsWhereTheyCount) {
  const Source source = make({});
  auto types = types_of(source, options_of("Q4_K_M"));
  EXPECT_EQ(types["output.weight"], "Q6_K");
  EXPECT_EQ(types["token_embd.weight"], "Q4_K");
  EXPECT_EQ(types["output_norm.weight"], "F32");
  EXPECT_EQ(types["blk.3.attn_norm.weight"], "F32");
  EXPECT_EQ(types["blk.3.attn_q.bias"], "F32");
  EXPECT_EQ(types["blk.3.attn_q.weight"], "Q4_K");
  for (const int l : {0, 1, 4, 7, 10, 13, 14, 15}) {
    EXPECT_EQ(types[down(l)], "Q6_K") << l;
    EXPECT_EQ(types[v(l)], "Q6_K") << l;
  }
  for (const int l : {2, 3, 5, 6, 8, 9, 11, 12}) {
    EXPECT_EQ(types[down(l)], "Q4_K") << l;
    EXPECT_EQ(types[v(l)], "Q4_K") << l;
  }
  types = types_of(source, options_of("q4_k_s"));
  EXPECT_EQ(types[down(1)], "Q5_K");
  EXPECT_EQ(types[down(2)], "Q4_K");
  EXPECT_EQ(types[v(3)], "Q5_K");
  EXPECT_EQ(types[v(4)], "Q4_K");
  types = types_of(source, options_of("Q3_K_M"));
  EXPECT_EQ(types[down(0)], "Q5_K");
  EXPECT_EQ(types[down(1)], "Q4_K");
  EXPECT_EQ(types[v(1)], "Q5_K");
  EXPECT_EQ(types[v(2)], "Q4_K");
  EXPECT_EQ(types["blk.3.attn_output.weight"], "Q4_K");
  EXPECT_EQ(types["blk.3.ffn_up.weight"], "Q3_K");
  types = types_of(source, options_of("Q2_K"));
  EXPECT_EQ(types[v(5)], "Q3_K");
  EXPECT_EQ(types_of(make({.kv_heads = 2}), options_of("Q2_K"))[v(5)], "Q4_K");
  EXPECT_EQ(types[down(5)], "Q3_K");
  EXPECT_EQ(types["blk.3.ffn_up.weight"], "Q2_K");
  for (const char* whole : {"Q8_0", "Q4_0", "Q5_1", "Q6_K", "Q5_K_S", "Q3_K_S"}) {
    const QuantizationOptions options = options_of(whole);
    EXPECT_EQ(types_of(source, options)["blk.3.ffn_down.weight"], dtype_name(options.recipe.type));
  }
}

TEST(QuantizationPlan, ATiedEmbeddingIsAHead) {
  EXPECT_EQ(types_of(make({.head = false}), options_of("Q4_K_M"))["token_embd.weight"], "Q6_K");
  EXPECT_EQ(types_of(make({.head = false}), options_of("Q8_0"))["token_embd.weight"], "Q8_0");
}

TEST(QuantizationPlan, RowsThatBlocksDoNotDivideGetSmallerOnes) {
  const Source source = make({.columns = 96});
  auto plan = plan_quantization(*source.file, options_of("Q4_K_M"));
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->warnings.size(), 1u);
  EXPECT_THAT(plan->warnings[0], HasSubstr("smaller blocks"));
  auto types = types_of(source, options_of("Q4_K_M"));
  EXPECT_EQ(types["output.weight"], "Q8_0");
  EXPECT_EQ(types["blk.3.attn_q.weight"], "Q5_0");
  EXPECT_EQ(types[down(0)], "Q8_0");
  EXPECT_EQ(types_of(source, options_of("Q2_K"))["blk.3.ffn_up.weight"], "Q4_0");
  EXPECT_EQ(types_of(source, options_of("Q5_K_S"))["blk.3.ffn_up.weight"], "Q5_1");
  EXPECT_EQ(types_of(make({.columns = 40}), options_of("Q4_0"))["blk.3.ffn_up.weight"], "F16");
}

TEST(QuantizationPlan, ExpertsAndTheirRouter) {
  const Source source = make({.layers = 2, .experts = 8});
  auto types = types_of(source, options_of("Q4_K_M"));
  EXPECT_EQ(types["blk.0.ffn_gate_inp.weight"], "F32");
  EXPECT_EQ(types["blk.0.ffn_up_exps.weight"], "Q4_K");
  EXPECT_EQ(types[v(0)], "Q8_0");
  EXPECT_EQ(types["blk.0.attn_k.weight"], "Q8_0");
  EXPECT_EQ(types["blk.0.attn_output.weight"], "Q5_K");
  types = types_of(source, options_of("MXFP4_MOE"));
  EXPECT_EQ(types["blk.0.ffn_up_exps.weight"], "MXFP4");
  EXPECT_EQ(types["blk.0.attn_q.weight"], "Q8_0");
}

TEST(QuantizationPlan, OverridesAndPure) {
  const Source source = make({});
  QuantizationOptions options = options_of("Q4_K_M");
  options.overrides = {{"blk\\.[01]\\.ffn_down", DType::kQ8_0}, {"ffn_", DType::kQ5_K}};
  auto types = types_of(source, options);
  EXPECT_EQ(types[down(0)], "Q8_0");
  EXPECT_EQ(types[down(2)], "Q5_K");
  EXPECT_EQ(types["blk.1.ffn_up.weight"], "Q5_K");
  EXPECT_EQ(types["blk.1.attn_q.weight"], "Q4_K");
  options = options_of("Q4_K_M");
  options.pure = true;
  types = types_of(source, options);
  EXPECT_EQ(types[down(0)], "Q4_K");
  EXPECT_EQ(types["output.weight"], "Q4_K");

  const auto error_of = [&](std::vector<TypeOverride> overrides) {
    QuantizationOptions wrong = options_of("Q4_K_M");
    wrong.overrides = std::move(overrides);
    auto plan = plan_quantization(*make({.layers = 1, .columns = 96}).file, wrong);
    EXPECT_FALSE(plan.ok());
    return plan.ok() ? std::string() : plan.error().message;
  };
  EXPECT_THAT(error_of({{"ffn_(", DType::kQ8_0}}), HasSubstr("'ffn_(' is no regular expression"));
  EXPECT_THAT(error_of({{"ffn_side", DType::kQ8_0}}), HasSubstr("no matrix has 'ffn_side'"));
  EXPECT_THAT(error_of({{"ffn_up", DType::kQ6_K}}),
              HasSubstr("rows of 96, and Q6_K has blocks of 256; Q8_0"));
  EXPECT_THAT(find_recipe("Q4_K_X").error().message, HasSubstr("did you mean 'Q4_K_"));
  EXPECT_THAT(find_quantized_type("Q4_K_M").error().message, HasSubstr("types: F32"));
}

TEST(QuantizationPlan, ImportanceIsOfThisModel) {
  const Source source = make({.layers = 2});
  formats::ImportanceMatrix importance;
  QuantizationOptions options = options_of("Q4_0");
  options.importance = &importance;
  importance.tensors["blk.7.attn_q.weight"] = {1, std::vector<float>(kColumns, 1), {}};
  EXPECT_THAT(plan_quantization(*source.file, options).error().message,
              HasSubstr("none of the tensors"));
  importance.tensors["blk.0.attn_q.weight"] = {1, std::vector<float>(kColumns, 1), {}};
  auto plan = plan_quantization(*source.file, options);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->warnings, ::testing::Contains(HasSubstr("13 of 14")));
  importance.tensors["blk.0.attn_q.weight"].values.resize(kColumns - 1);
  EXPECT_THAT(plan_quantization(*source.file, options).error().message, HasSubstr("another model"));
}

std::shared_ptr<const ModelFile> written(const Source& source, const QuantizationOptions& options,
                                         int threads, std::string& out, Status& status) {
  ThreadPool pool(threads);
  formats::GgufWriter writer;
  auto plan = plan_quantization(*source.file, options);
  EXPECT_TRUE(plan.ok()) << plan.error().message;
  add_quantized(*source.file, options, *plan, pool, {}, writer);
  const std::string path = ::testing::TempDir() + "cutaway-quantized.gguf";
  status = writer.write(path);
  if (!status.ok()) return nullptr;
  auto file = formats::open_gguf(path);
  EXPECT_TRUE(file.ok());
  out.resize((*file)->files[0].size());
  EXPECT_TRUE((*file)
                  ->files[0]
                  .read(0, std::span(reinterpret_cast<uint8_t*>(out.data()), out.size()))
                  .ok());
  return *file;
}

TEST(Quantization, KeepsTheMetadataAndSetsWhatChanged) {
  const Source source = make({.layers = 2});
  std::string bytes, again;
  Status status;
  const auto file = written(source, options_of("Q4_K_M"), 2, bytes, status);
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(*file->metadata.integer("general.file_type", 0, 99), 15);
  EXPECT_EQ(*file->metadata.integer("general.quantization_version", 0, 99), 2);
  EXPECT_FALSE(file->metadata.has("split.count"));
  for (const char* kept : {"general.architecture", "llama.block_count", "some.numbers"}) {
    EXPECT_TRUE(*file->metadata.find(kept) == *source.file->metadata.find(kept)) << kept;
  }
  ASSERT_EQ(file->tensors.size(), source.file->tensors.size());
  for (size_t i = 0; i < file->tensors.size(); ++i) {
    const StoredTensor &a = file->tensors[i], &b = source.file->tensors[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_TRUE(a.shape == b.shape) << a.name;
    const std::vector<uint8_t> ours = *file->bytes_of(a), theirs = *source.file->bytes_of(b);
    if (a.dtype == b.dtype) {
      EXPECT_EQ(ours, theirs);
      continue;
    }
    std::vector<float> values(static_cast<size_t>(a.shape.elements()));
    kernels::dequantize(a.dtype, ours.data(), a.shape.elements(), values.data());
    double off = 0, all = 0;
    const auto* x = reinterpret_cast<const float*>(theirs.data());
    for (size_t k = 0; k < values.size(); ++k) {
      off += std::pow(values[k] - x[k], 2);
      all += x[k] * x[k];
    }
    EXPECT_LT(std::sqrt(off / all), 0.09) << a.name;
  }
  written(source, options_of("Q4_K_M"), 1, again, status);
  EXPECT_EQ(bytes, again);  // threads change nothing
}

TEST(Quantization, EachExpertHasItsOwnImportance) {
  const Source source = make({.layers = 1, .experts = 2});
  formats::ImportanceMatrix importance;
  formats::Importance& entry = importance.tensors["blk.0.ffn_up_exps.weight"];
  entry.matrices = 2;
  for (int64_t i = 0; i < 2 * kColumns; ++i)
    entry.values.push_back((i * 7 + i / kColumns) % 5 == 0 ? 100.0f : 1.0f);
  QuantizationOptions options = options_of("Q4_0");
  options.importance = &importance;
  std::string bytes;
  Status status;
  const auto file = written(source, options, 2, bytes, status);
  ASSERT_TRUE(status.ok());
  const auto bytes_in = [](const ModelFile& f) {
    return *f.bytes_of(*f.find_tensor("blk.0.ffn_up_exps.weight"));
  };
  const std::vector<uint8_t> found = bytes_in(*file), from = bytes_in(*source.file);
  const size_t row_bytes = dtype_bytes(DType::kQ4_0, kColumns);
  for (int64_t row = 0; row < 2 * kRows; ++row) {
    std::vector<uint8_t> expected(row_bytes);
    formats::quantize_row_searched(
        DType::kQ4_0, reinterpret_cast<const float*>(from.data()) + row * kColumns,
        entry.values.data() + row / kRows * kColumns, kColumns, expected.data());
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(),
                           found.begin() + row * static_cast<int64_t>(row_bytes)))
        << row;
  }
}

TEST(Quantization, RefusesNumbersThatTheTypeCannotHold) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), -70000.0f}) {
    // Value 3·512 + 5 of blk.1's attn_k.
    const Source source =
        make({.layers = 2}, [&](Source& s) { (*s.values[3 + 9 + 2])[3 * kColumns + 5] = bad; });
    std::string bytes;
    Status status;
    EXPECT_EQ(written(source, options_of("Q4_K_M"), 2, bytes, status), nullptr);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidFile);
    EXPECT_THAT(status.error().message,
                HasSubstr("\"blk.1.attn_k.weight\" holds a value in row 3"));
  }
}

TEST(Quantization, AQuantisedFileLosesOnceMoreOnlyWhenAsked) {
  const Source source = make({.layers = 1});
  std::string bytes;
  Status status;
  const auto file = written(source, options_of("Q8_0"), 1, bytes, status);
  ASSERT_TRUE(status.ok());
  const std::vector<uint8_t> held(bytes.begin(), bytes.end());
  Source quantized;
  quantized.file = *formats::parse_gguf(held, "held");
  QuantizationOptions options = options_of("Q4_K_M");
  auto plan = plan_quantization(*quantized.file, options);
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.error().message, HasSubstr("is Q8_0 already"));
  options.allow_requantize = true;
  EXPECT_EQ(types_of(quantized, options)["blk.0.attn_q.weight"], "Q4_K");
  // To what it is already, and to floats: nothing is lost.
  EXPECT_EQ(types_of(quantized, options_of("Q8_0"))["blk.0.attn_q.weight"], "Q8_0");
  EXPECT_EQ(types_of(quantized, options_of("F16"))["blk.0.attn_q.weight"], "F16");
}

}  // namespace
}  // namespace cutaway::model
