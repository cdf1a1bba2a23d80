// Importance matrices: both of llama.cpp's formats, written out byte by byte here, and what is
// refused.
#include "formats/imatrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "formats/gguf.h"

namespace cutaway::formats {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ImatrixTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("cutaway-imatrix-" +
               std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string file(const std::string& bytes) const {
    std::ofstream(path("f.dat"), std::ios::binary) << bytes;
    return path("f.dat");
  }
  Error error_of(const std::string& path) const {
    auto out = read_importance(path);
    EXPECT_FALSE(out.ok());
    return out.ok() ? Error{} : out.error();
  }

  fs::path folder_;
};

template <typename T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
std::string legacy_entry(const std::string& name, int32_t calls, const std::vector<float>& values) {
  std::string out = raw(static_cast<int32_t>(name.size())) + name + raw(calls) +
                    raw(static_cast<int32_t>(values.size()));
  for (const float v : values) out += raw(v);
  return out;
}

TEST_F(ImatrixTest, ReadsTheOlderForm) {
  std::string bytes = raw(int32_t{2}) + legacy_entry("blk.0.attn_q.weight", 4, {8, 2, 0}) +
                      legacy_entry("blk.1.ffn_down.weight", 0, {3});
  auto bare = read_importance(file(bytes));
  ASSERT_TRUE(bare.ok()) << bare.error().message;
  EXPECT_THAT(bare->tensors.at("blk.0.attn_q.weight").values, ElementsAre(2, 0.5f, 0));
  EXPECT_THAT(bare->tensors.at("blk.1.ffn_down.weight").values, ElementsAre(3));
  EXPECT_EQ(bare->chunks, 0);
  bytes += raw(int32_t{7}) + raw(int32_t{8}) + "wiki.txt";
  auto whole = read_importance(file(bytes));
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  EXPECT_EQ(whole->chunks, 7);
  EXPECT_THAT(whole->datasets, ElementsAre("wiki.txt"));
}

TEST_F(ImatrixTest, WhatIsWrittenIsRead) {
  ImportanceMatrix made;
  made.tensors["blk.0.attn_q.weight"] = {1, {2, 0.5f, 4}, {512}};
  made.tensors["blk.0.ffn_up_exps.weight"] = {3, {1, 2, 3, 4, 0, 0}, {10, 20, 0}};
  made.datasets = {"a.txt"};
  made.chunks = 2;
  made.chunk_size = 256;
  ASSERT_TRUE(write_importance(made, path("i.gguf"), false).ok());
  EXPECT_FALSE(write_importance(made, path("i.gguf"), false).ok());
  auto read = read_importance(path("i.gguf"));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_THAT(read->tensors.at("blk.0.attn_q.weight").values, ElementsAre(2, 0.5f, 4));
  const Importance& experts = read->tensors.at("blk.0.ffn_up_exps.weight");
  EXPECT_EQ(experts.matrices, 3);
  EXPECT_THAT(experts.values, ElementsAre(1, 2, 3, 4, 1, 1));  // one that no token met: all alike
  EXPECT_THAT(experts.counts, ElementsAre(10, 20, 0));
  EXPECT_EQ(read->chunks, 2);
  EXPECT_EQ(read->chunk_size, 256);
  EXPECT_THAT(read->datasets, ElementsAre("a.txt"));
  // The form that llama.cpp reads: sums, counts, and their shapes.
  auto file = open_gguf(path("i.gguf"));
  ASSERT_TRUE(file.ok());
  const StoredTensor* sums = (*file)->find_tensor("blk.0.ffn_up_exps.weight.in_sum2");
  ASSERT_NE(sums, nullptr);
  EXPECT_TRUE(sums->shape == (Shape{3, 2}));
  float first = 0;
  ASSERT_TRUE((*file)
                  ->read(*sums, 3 * sizeof first,
                         std::span(reinterpret_cast<uint8_t*>(&first), sizeof first))
                  .ok());
  EXPECT_EQ(first, 4 * 20);
  EXPECT_TRUE((*file)->find_tensor("blk.0.ffn_up_exps.weight.counts")->shape == (Shape{3, 1}));
  EXPECT_FALSE(write_importance({}, path("none.gguf"), false).ok());
}

TEST_F(ImatrixTest, RefusesEveryCutOfTheOlderForm) {
  const std::string bytes = raw(int32_t{2}) + legacy_entry("blk.0.attn_q.weight", 4, {8, 2, 0}) +
                            legacy_entry("blk.1.ffn_down.weight", 1, {3}) + raw(int32_t{7}) +
                            raw(int32_t{8}) + "wiki.txt";
  const size_t entries = bytes.size() - 16;
  for (size_t n = 1; n < bytes.size(); ++n) {
    if (n == entries || n == entries + 4) continue;  // what follows the entries may be left out
    const Error error = error_of(file(bytes.substr(0, n)));
    EXPECT_EQ(error.code, ErrorCode::kInvalidFile) << n;
    EXPECT_THAT(error.message, HasSubstr("f.dat: byte")) << n;
  }
}

TEST_F(ImatrixTest, RefusesWhatIsNoImportance) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(error_of(file(raw(int32_t{-1}))).message, HasSubstr("number of entries is -1"));
  EXPECT_THAT(error_of(file(raw(int32_t{0}))).message, HasSubstr("0 entries"));
  EXPECT_THAT(error_of(file(raw(int32_t{1}) + legacy_entry("blk.0.w", 1, {1, nan}))).message,
              HasSubstr("column 1 of \"blk.0.w\" is nan"));
  EXPECT_THAT(error_of(file(raw(int32_t{1}) + legacy_entry("blk.0.w", 1, {-1}))).message,
              HasSubstr("is -1"));
  EXPECT_THAT(error_of(file(raw(int32_t{1}) + legacy_entry("w", 1, {}))).message,
              HasSubstr("0 columns"));
  EXPECT_THAT(
      error_of(file(raw(int32_t{2}) + legacy_entry("w", 1, {1}) + legacy_entry("w", 1, {1})))
          .message,
      HasSubstr("twice"));
  EXPECT_EQ(error_of(path("none")).code, ErrorCode::kNotFound);

  GgufWriter model;
  model.add("general.type", std::string("model"));
  ASSERT_TRUE(model.write(path("m.gguf")).ok());
  EXPECT_THAT(error_of(path("m.gguf")).message, HasSubstr("expected \"imatrix\""));

  const auto gguf = [&](const std::vector<float>& sums, const std::vector<float>& counts) {
    GgufWriter writer;
    writer.add("general.type", std::string("imatrix"));
    const auto bytes = [](const std::vector<float>& v) {
      return std::span(reinterpret_cast<const uint8_t*>(v.data()), v.size() * sizeof(float));
    };
    writer.add_tensor("w.in_sum2", DType::kF32, Shape{static_cast<int64_t>(sums.size())},
                      bytes(sums));
    if (!counts.empty()) {
      writer.add_tensor("w.counts", DType::kF32, Shape{static_cast<int64_t>(counts.size())},
                        bytes(counts));
    }
    EXPECT_TRUE(writer.write(path("g.gguf")).ok());
    return path("g.gguf");
  };
  EXPECT_THAT(error_of(gguf({1, 2}, {})).message, HasSubstr("no counts"));
  EXPECT_THAT(error_of(gguf({1, 2, 3}, {1, 1})).message, HasSubstr("3 sums for 2 counts"));
  EXPECT_THAT(error_of(gguf({1, 2}, {-1})).message, HasSubstr("count 0"));
  EXPECT_THAT(error_of(gguf({1, -2}, {1})).message, HasSubstr("column 1"));
}

}  // namespace
}  // namespace cutaway::formats
