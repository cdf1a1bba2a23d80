// Files that are cut, changed or taken away while they are read.
#include "base/input_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/clock.h"
#include "base/file_window.h"
#include "formats/gguf.h"
#include "model/loaded_model.h"

namespace cutaway {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class InputFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("cutaway-input-" + new_ulid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string make(const std::string& name, size_t size) const {
    std::ofstream out(folder_ / name, std::ios::binary);
    for (size_t i = 0; i < size; ++i) out.put(static_cast<char>(i * 7 % 251));
    return (folder_ / name).string();
  }
  std::string golden(const std::string& name) const {
    fs::copy_file(fs::path(CUTAWAY_SOURCE_DIR) / "tests" / "golden" / name, folder_ / name);
    return (folder_ / name).string();
  }

  fs::path folder_;
};

TEST_F(InputFiles, WhatIsNoFileIsRefusedAtOnce) {
  EXPECT_EQ(InputFile::open((folder_ / "none").string()).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(InputFile::open(folder_.string()).error().code, ErrorCode::kIo);
  EXPECT_EQ(InputFile::open(make("empty", 0)).error().code, ErrorCode::kInvalidFile);
  const std::string pipe = (folder_ / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(InputFile::open(pipe).error().message, HasSubstr("is not a regular file"));
}

TEST_F(InputFiles, ReadsAnyPartAndNothingPastTheEnd) {
  auto file = InputFile::open(make("a", 1000));
  ASSERT_TRUE(file.ok());
  std::vector<uint8_t> part(100);
  ASSERT_TRUE(file->read(900, part).ok());
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(part[i], (900 + i) * 7 % 251);
  EXPECT_EQ(file->read(901, part).error().code, ErrorCode::kIo);
  EXPECT_EQ(file->read(UINT64_MAX, part).error().code, ErrorCode::kIo);
  EXPECT_TRUE(file->read(1000, {}).ok());
}

TEST_F(InputFiles, ACutFileIsAnError) {
  const std::string path = make("a", 10'000);
  auto file = InputFile::open(path);
  ASSERT_TRUE(file.ok());
  fs::resize_file(path, 5'000);
  std::vector<uint8_t> all(10'000);
  const Status read = file->read(0, all);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kIo);
  EXPECT_THAT(read.error().message, HasSubstr("has no byte 5000 any more; it had 10000 bytes"));
  EXPECT_THAT(file->check_unchanged().error().message, HasSubstr("was changed while"));
}

TEST_F(InputFiles, AChangeInPlaceIsSeenARenameIsNot) {
  const std::string path = make("a", 1000);
  auto file = InputFile::open(path);
  ASSERT_TRUE(file.ok());
  fs::rename(make("b", 2000), path);
  EXPECT_TRUE(file->check_unchanged().ok()) << "what is open is still the first file";
  auto second = InputFile::open(path);
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(2));
  EXPECT_EQ(second->check_unchanged().error().code, ErrorCode::kInvalidFile);
}

TEST_F(InputFiles, WindowWalksOverBufferEdges) {
  constexpr size_t kSize = 700'000;  // the buffer is filled more than once
  const std::string path = make("a", kSize);
  auto file = InputFile::open(path);
  ASSERT_TRUE(file.ok());
  FileWindow window(*file);
  uint64_t at = 0;
  for (uint64_t step = 1; window.left() > 0; step = step * 5 % 65'537) {
    const uint64_t n = std::min(step, window.left());
    const uint8_t* bytes = window.take(n);
    ASSERT_NE(bytes, nullptr);
    for (uint64_t i = 0; i < n; ++i) ASSERT_EQ(bytes[i], (at + i) * 7 % 251) << at + i;
    at += n;
  }
  EXPECT_EQ(at, kSize);
  window.move_to(3);
  std::vector<uint8_t> large(kSize - 3);
  ASSERT_TRUE(window.take_into(large).ok());
  EXPECT_EQ(large.back(), (kSize - 1) * 7 % 251);
  EXPECT_EQ(window.left(), 0u);
  EXPECT_NE(window.take(0), nullptr);
  fs::resize_file(path, 100);
  window.move_to(50'000);
  EXPECT_EQ(window.take(10), nullptr);
  EXPECT_THAT(window.error().message, HasSubstr("it was cut while it was being read"));
}

// Cut at many places between being opened and being packed: an error each time, in every thread.
TEST_F(InputFiles, AModelThatIsCutWhileItLoads) {
  const std::string name = "llama-gqa3-tied.gguf";
  const std::string path = golden(name);
  const uint64_t size = fs::file_size(path);
  ThreadPool pool(2);
  for (uint64_t cut = 0; cut < size; cut += size / 40) {
    fs::remove(path);
    golden(name);
    auto file = formats::open_gguf(path);
    ASSERT_TRUE(file.ok());
    fs::resize_file(path, cut);
    const auto loaded = model::LoadedModel::load(*file, pool, {});
    ASSERT_FALSE(loaded.ok()) << cut;
    EXPECT_EQ(loaded.error().code, ErrorCode::kIo);
    EXPECT_THAT(loaded.error().message, HasSubstr("it was cut while it was being read"));
  }
}

// What was read before stays right when the file is cut afterwards.
TEST_F(InputFiles, ALoadedModelNeedsItsFileNoLonger) {
  const std::string path = golden("llama-gqa3-tied.gguf");
  ThreadPool pool(2);
  const auto loaded = model::LoadedModel::load(path, pool, {});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const std::string before = (*loaded)->file_hash();
  EXPECT_EQ(before.size(), 32u);
  const Hash128 packed = (*loaded)->packed_hash();
  fs::resize_file(path, 1000);
  EXPECT_THAT((*loaded)->file_hash(), HasSubstr("has no byte 1000 any more"));
  EXPECT_EQ((*loaded)->packed_hash(), packed);
}

}  // namespace
}  // namespace cutaway
