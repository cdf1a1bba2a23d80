// Split GGUF models: shards put together, and every way in which a set of files is none.
#include "formats/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "formats/gguf.h"
#include "formats/open.h"
#include "formats/shard_name.h"

namespace cutaway::formats {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kShards = 3;

// A set of shards in a folder of its own: tensors t0 … t5 of one row, two in each, whose values are
// their numbers.
class SplitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("cutaway-split-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    for (int64_t i = 0; i < kShards; ++i) write(i);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(int64_t no) const { return shard_path((folder_ / "m").string(), no, kShards); }

  struct Changes {
    int64_t no = -1, count = kShards, tensors = 2 * kShards;
    std::string first_tensor, name;
  };
  void write(int64_t i) { write(i, Changes()); }
  void write(int64_t i, Changes c) {
    GgufWriter writer;
    if (i == 0) writer.add("general.architecture", std::string("llama"));
    if (!c.name.empty()) writer.add("general.architecture", c.name);
    writer.add("split.no", static_cast<uint64_t>(c.no < 0 ? i : c.no));
    if (c.count > 0) writer.add("split.count", static_cast<uint64_t>(c.count));
    writer.add("split.tensors.count", c.tensors);
    std::vector<std::vector<float>> rows;
    for (int64_t t = 0; t < 2; ++t) rows.emplace_back(8, static_cast<float>(2 * i + t));
    for (int64_t t = 0; t < 2; ++t) {
      const std::string name = "t" + std::to_string(2 * i + t);
      writer.add_tensor(t == 0 && !c.first_tensor.empty() ? c.first_tensor : name, DType::kF32,
                        Shape({8}), {reinterpret_cast<const uint8_t*>(rows[t].data()), 32});
    }
    ASSERT_TRUE(writer.write(path(i + 1)).ok());
  }

  Error error_of(const std::string& file) const {
    const auto opened = open_model_file(file);
    EXPECT_FALSE(opened.ok());
    return opened.ok() ? Error{} : opened.error();
  }

  fs::path folder_;
};

TEST_F(SplitTest, AllShardsAreOneModel) {
  const auto file = open_model_file(path(1));
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ((*file)->tensors.size(), 2u * kShards);
  for (size_t i = 0; i < (*file)->tensors.size(); ++i) {
    const StoredTensor& tensor = (*file)->tensors[i];
    EXPECT_EQ(tensor.name, "t" + std::to_string(i));
    EXPECT_EQ(tensor.file, i / 2);
    EXPECT_EQ((*file)->find_tensor(tensor.name), &tensor);
    const auto bytes = (*file)->bytes_of(tensor);
    ASSERT_TRUE(bytes.ok());
    float value = -1;
    std::memcpy(&value, bytes->data(), sizeof value);
    EXPECT_EQ(value, static_cast<float>(i));
  }
  EXPECT_EQ((*file)->metadata.string("general.architecture").value(), "llama");
  EXPECT_FALSE((*file)->metadata.has("split.count")) << "a copy of the whole is no shard";
  uint64_t bytes = 0;
  for (int64_t no = 1; no <= kShards; ++no) bytes += fs::file_size(path(no));
  EXPECT_EQ((*file)->total_bytes(), bytes);
}

TEST_F(SplitTest, AnotherShardThanTheFirstIsNamed) {
  const Error error = error_of(path(2));
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message, AllOf(HasSubstr("shard 2 of 3"), HasSubstr("'" + path(1) + "'")));
}

TEST_F(SplitTest, AMissingShardIsNamed) {
  fs::remove(path(3));
  const Error error = error_of(path(1));
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
  EXPECT_THAT(error.message, AllOf(HasSubstr("shard 3 of 3 is missing"), HasSubstr(path(3))));
}

TEST_F(SplitTest, RenamedShards) {
  fs::rename(path(2), folder_ / "x");
  fs::rename(path(3), path(2));
  fs::rename(folder_ / "x", path(3));
  EXPECT_THAT(error_of(path(1)).message, AllOf(HasSubstr(path(2)), HasSubstr("called shard 2 of 3"),
                                               HasSubstr("shard 3 of 3")));
  fs::rename(path(1), folder_ / "other.gguf");
  EXPECT_THAT(error_of((folder_ / "other.gguf").string()).message,
              AllOf(HasSubstr("other.gguf"), HasSubstr("00001-of-00003.gguf")));
  const std::string of_four = shard_path((folder_ / "m").string(), 1, 4);
  fs::rename(folder_ / "other.gguf", of_four);
  EXPECT_THAT(error_of(of_four).message,
              AllOf(HasSubstr("called shard 1 of 4"), HasSubstr("shard 1 of 3")));
}

TEST_F(SplitTest, ShardsOfOtherModels) {
  const auto expect = [&](const Changes& changes, const std::string& part) {
    write(1, changes);
    const Error error = error_of(path(1));
    EXPECT_EQ(error.code, ErrorCode::kInvalidFile);
    EXPECT_THAT(error.message, AllOf(HasSubstr(path(2)), HasSubstr(part)));
    write(1);
  };
  expect({.no = 2}, "says that it is shard 3 of 3");
  expect({.count = 5}, "says that it is shard 2 of 5");
  expect({.count = 0}, "a whole model of its own");
  expect({.tensors = 7}, "split.tensors.count is 7, but 6 in the first shard");
  expect({.first_tensor = "t0"}, "tensor \"t0\" is in m-00001-of-00003.gguf already");
  expect({.name = "qwen2"}, "metadata \"general.architecture\" differs");
  EXPECT_TRUE(open_model_file(path(1)).ok());
}

TEST_F(SplitTest, TensorsThatNoShardHolds) {
  for (int64_t i = 0; i < kShards; ++i) write(i, {.tensors = 9});
  EXPECT_THAT(error_of(path(1)).message,
              AllOf(HasSubstr("hold 6 tensors"), HasSubstr("split.tensors.count is 9")));
}

TEST_F(SplitTest, ADamagedShardIsNamed) {
  fs::resize_file(path(2), 100);
  const Error error = error_of(path(1));
  EXPECT_EQ(error.code, ErrorCode::kInvalidFile);
  EXPECT_THAT(error.message, AllOf(HasSubstr("shard 2 of 3"), HasSubstr(path(2))));
}

TEST(ShardNameTest, NamesOfShards) {
  const auto name = parse_shard_name("a/b-00002-of-00010.gguf");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->prefix, "a/b");
  EXPECT_EQ(name->no, 2);
  EXPECT_EQ(name->count, 10);
  EXPECT_EQ(shard_path(name->prefix, name->no, name->count), "a/b-00002-of-00010.gguf");
  for (const char* other :
       {"", ".gguf", "b.gguf", "-00001-of-00002.gguf", "a/-00001-of-00002.gguf",
        "b-00000-of-00002.gguf", "b-00003-of-00002.gguf", "b-0001-of-0002.gguf",
        "b-00001-of-00002.bin", "b-0000x-of-00002.gguf", "b_00001-of-00002.gguf"}) {
    EXPECT_FALSE(parse_shard_name(other).has_value()) << other;
  }
}

}  // namespace
}  // namespace cutaway::formats
