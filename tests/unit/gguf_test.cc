// GGUF files that are in order: what is read is what was written; and cut at every byte, none is.
#include "formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>

#include "base/clock.h"
#include "formats/open.h"
#include "tests/unit/gguf_bytes.h"

namespace cutaway::formats {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class GgufFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("cutaway-gguf-" + new_ulid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string save(const std::string& name, std::string_view bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  size_t files() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_;
};

// Every kind of value and of tensor that can be written.
struct Sample {
  std::vector<uint8_t> data = std::vector<uint8_t>(4096);
  GgufWriter writer;

  Sample() {
    std::iota(data.begin(), data.end(), uint8_t{0});
    writer.add("general.architecture", std::string("llama"));
    writer.add("bool", true);
    writer.add("i64.small", int64_t{-7});
    writer.add("i64.large", std::numeric_limits<int64_t>::min());
    writer.add("u64.small", uint64_t{4294967295});
    writer.add("u64.large", std::numeric_limits<uint64_t>::max());
    writer.add("f32", 0.5);
    writer.add("f64", 0.1);
    writer.add("inf", std::numeric_limits<double>::infinity());
    writer.add("too large for f32", 1e300);
    writer.add("empty", std::string());
    writer.add("bytes", std::string("\0\xFF\n", 3));
    writer.add("ints", std::vector<int64_t>{-1, 0, 2147483647});
    writer.add("long ints", std::vector<int64_t>{1, int64_t{1} << 40});
    writer.add("floats", std::vector<double>{-0.25, 3});
    writer.add("doubles", std::vector<double>{0.1, 3});
    writer.add("no ints", std::vector<int64_t>{});
    writer.add("strings", std::vector<std::string>{"", "안녕", "c"});
    writer.add("no strings", std::vector<std::string>{});
    writer.add("bools", std::vector<bool>{true, false, true});
    writer.add_u32("u32", 7);
    writer.add_f32("f32.exact", 1e-5f);
    const std::span<const uint8_t> all(data);
    writer.add_tensor("f32", DType::kF32, {3, 5}, all.first(60));
    writer.add_tensor("f16", DType::kF16, {7}, all.first(14));
    writer.add_tensor("bf16", DType::kBF16, {1, 1, 2, 3}, all.subspan(1, 12));
    writer.add_tensor("q8_0", DType::kQ8_0, {2, 64}, all.subspan(100, 136));
    writer.add_tensor("q4_0", DType::kQ4_0, {3, 32}, all.subspan(9, 54));
    writer.add_tensor("q4_1", DType::kQ4_1, {1, 96}, all.subspan(5, 60));
    writer.add_tensor("i32", DType::kI32, {2, 2, 2}, all.first(32));
  }
};

TEST(GgufRoundTrip, EveryValueAndTensor) {
  const Sample sample;
  ASSERT_TRUE(sample.writer.check().ok());
  const std::vector<uint8_t> bytes = sample.writer.to_bytes();
  const auto file = parse_gguf(bytes, "sample");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ((*file)->format, "gguf");
  const Metadata& m = (*file)->metadata;
  ASSERT_EQ(m.entries().size(), 22u);
  EXPECT_EQ(m.entries()[0].first, "general.architecture") << "the file's order";
  EXPECT_EQ(*m.find("bool"), MetaValue(true));
  EXPECT_EQ(*m.find("i64.small"), MetaValue(int64_t{-7}));
  EXPECT_EQ(*m.find("i64.large"), MetaValue(std::numeric_limits<int64_t>::min()));
  EXPECT_EQ(*m.find("u64.small"), MetaValue(uint64_t{4294967295}));
  EXPECT_EQ(*m.find("u64.large"), MetaValue(std::numeric_limits<uint64_t>::max()));
  EXPECT_EQ(*m.find("f64"), MetaValue(0.1));
  EXPECT_EQ(*m.find("inf"), MetaValue(std::numeric_limits<double>::infinity()));
  EXPECT_EQ(*m.find("too large for f32"), MetaValue(1e300));
  EXPECT_EQ(*m.find("bytes"), MetaValue(std::string("\0\xFF\n", 3)));
  EXPECT_EQ(*m.find("long ints"), MetaValue(std::vector<int64_t>{1, int64_t{1} << 40}));
  EXPECT_EQ(*m.find("doubles"), MetaValue(std::vector<double>{0.1, 3}));
  EXPECT_EQ(*m.find("no ints"), MetaValue(std::vector<int64_t>{}));
  EXPECT_EQ(*m.find("strings"), MetaValue(std::vector<std::string>{"", "안녕", "c"}));
  EXPECT_EQ(*m.find("no strings"), MetaValue(std::vector<std::string>{}));
  EXPECT_EQ(*m.find("bools"), MetaValue(std::vector<bool>{true, false, true}));
  EXPECT_EQ(*m.find("f32.exact"), MetaValue(static_cast<double>(1e-5f)));

  ASSERT_EQ((*file)->tensors.size(), 7u);
  const StoredTensor* f32 = (*file)->find_tensor("f32");
  ASSERT_NE(f32, nullptr);
  EXPECT_EQ(f32->shape, (Shape{3, 5}));
  EXPECT_EQ((*file)->find_tensor("bf16")->shape, (Shape{1, 1, 2, 3}));
  const StoredTensor* q8 = (*file)->find_tensor("q8_0");
  EXPECT_EQ(q8->dtype, DType::kQ8_0);
  ASSERT_EQ(q8->size, 136u);
  EXPECT_EQ(std::memcmp(bytes.data() + q8->offset, sample.data.data() + 100, 136), 0);
  for (const StoredTensor& tensor : (*file)->tensors) {
    EXPECT_EQ(tensor.offset % 32, 0) << tensor.name;
  }

  // Written again from what was read: the same bytes.
  GgufWriter again;
  for (const auto& [key, value] : m.entries()) again.add(key, value);
  for (const StoredTensor& t : (*file)->tensors)
    again.add_tensor(t.name, t.dtype, t.shape, std::span(bytes).subspan(t.offset, t.size));
  EXPECT_EQ(again.to_bytes(), bytes);
}

// Tensors whose bytes are made while the file is written give the file of those given at once.
TEST_F(GgufFiles, ProducedTensorsAreTheSameFile) {
  const std::vector<uint8_t> data(100, 9);
  GgufWriter given, produced;
  for (GgufWriter* writer : {&given, &produced}) {
    writer->add("general.architecture", std::string("llama"));
  }
  given.add_tensor("a", DType::kF32, {5}, std::span(data).first(20));
  given.add_tensor("b", DType::kF32, {25}, data);
  for (const size_t n : {size_t{20}, size_t{100}}) {
    produced.add_tensor(n == 20 ? "a" : "b", DType::kF32, {static_cast<int64_t>(n / 4)},
                        [&data, n](const GgufWriter::Append& append) -> Status {
                          for (size_t at = 0; at < n; at += 10) {
                            CUTAWAY_TRY(append(std::span(data).subspan(at, 10)));
                          }
                          return {};
                        });
  }
  ASSERT_TRUE(produced.check().ok());
  EXPECT_EQ(produced.file_bytes(), given.to_bytes().size());
  ASSERT_TRUE(produced.write(path("p.gguf")).ok());
  std::ifstream in(path("p.gguf"), std::ios::binary);
  const std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(in)), {});
  EXPECT_EQ(bytes, given.to_bytes());
}

TEST_F(GgufFiles, AProducerThatFailsLeavesNoFile) {
  const auto write = [&](const GgufWriter::Produce& produce) {
    GgufWriter writer;
    writer.add_tensor("t", DType::kF32, {4}, produce);
    const Status status = writer.write(path("p.gguf"));
    EXPECT_EQ(files(), 0u);
    return status.ok() ? Error{} : status.error();
  };
  const std::vector<uint8_t> data(20, 9);
  Error error =
      write([&](const GgufWriter::Append& append) { return append(std::span(data).first(12)); });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message, HasSubstr("12 bytes, expected 16"));
  error = write([&](const GgufWriter::Append& append) { return append(data); });
  EXPECT_THAT(error.message, HasSubstr("20 bytes, expected 16"));
  error = write(
      [](const GgufWriter::Append&) { return Status(Error{ErrorCode::kCancelled, "enough"}); });
  EXPECT_EQ(error.code, ErrorCode::kCancelled);
  EXPECT_EQ(error.message, "enough");
}

TEST(GgufRoundTrip, AlignmentOfTheFileIsKept) {
  for (const uint64_t alignment : {8u, 24u, 64u, 4096u}) {
    const std::vector<uint8_t> data(100, 9);
    GgufWriter writer;
    writer.add("general.alignment", alignment);
    writer.add_tensor("a", DType::kF32, {5}, std::span(data).first(20));
    writer.add_tensor("b", DType::kF32, {25}, data);
    const std::vector<uint8_t> bytes = writer.to_bytes();
    const auto file = parse_gguf(bytes, "x");
    ASSERT_TRUE(file.ok()) << file.error().message;
    const StoredTensor& b = (*file)->tensors[1];
    EXPECT_EQ(bytes[b.offset + 99], 9);
    EXPECT_EQ(b.offset % alignment, 0u);
  }
}

TEST(GgufTypes, EveryWidthOfIntegerIsWidened) {
  GgufBytes bytes;
  bytes.header(0, 12, 2);  // version 2 has the same layout
  bytes.key("u8", 0).u8(255).key("i8", 1).u8(255).key("u16", 2).put(uint16_t{65535});
  bytes.key("i16", 3)
      .put(int16_t{-2})
      .key("u32", 4)
      .u32(4294967295u)
      .key("i32", 5)
      .put(int32_t{-3});
  bytes.array("a8", 1, 2).u8(255).u8(1).array("a16", 2, 1).put(uint16_t{65535});
  bytes.array("a32", 4, 1).u32(4294967295u).array("a64", 11, 1).put(int64_t{-4});
  bytes.array("au64", 10, 1).u64(uint64_t{1} << 62).array("af", 6, 1).f32(0.1f);
  const auto file = parse_gguf(bytes.bytes(), "x");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const Metadata& m = (*file)->metadata;
  EXPECT_EQ(*m.find("u8"), MetaValue(uint64_t{255}));
  EXPECT_EQ(*m.find("i8"), MetaValue(int64_t{-1}));
  EXPECT_EQ(*m.find("u16"), MetaValue(uint64_t{65535}));
  EXPECT_EQ(*m.find("i16"), MetaValue(int64_t{-2}));
  EXPECT_EQ(*m.find("u32"), MetaValue(uint64_t{4294967295}));
  EXPECT_EQ(*m.find("i32"), MetaValue(int64_t{-3}));
  EXPECT_EQ(*m.find("a8"), MetaValue(std::vector<int64_t>{-1, 1}));
  EXPECT_EQ(*m.find("a16"), MetaValue(std::vector<int64_t>{65535}));
  EXPECT_EQ(*m.find("a32"), MetaValue(std::vector<int64_t>{4294967295}));
  EXPECT_EQ(*m.find("a64"), MetaValue(std::vector<int64_t>{-4}));
  EXPECT_EQ(*m.find("au64"), MetaValue(std::vector<int64_t>{int64_t{1} << 62}));
  EXPECT_EQ(*m.find("af"), MetaValue(std::vector<double>{static_cast<double>(0.1f)}));
}

TEST(GgufTensors, OrderAndGapsAreFree) {
  GgufBytes bytes;
  bytes.header(2, 0).tensor("late", {4}, 0, 96).tensor("early", {4}, 0, 32).pad().zeros(96);
  bytes.f32(2).zeros(12);
  const auto file = parse_gguf(bytes.bytes(), "x");
  ASSERT_TRUE(file.ok()) << file.error().message;
  float first = 0;
  std::memcpy(&first, (*file)->bytes_of(*(*file)->find_tensor("late"))->data(), 4);
  EXPECT_EQ(first, 2);
}

TEST(GgufTruncation, AtEveryByte) {
  const Sample sample;
  const std::vector<uint8_t> bytes = sample.writer.to_bytes();
  // The last tensor ends here; the padding after it may be missing.
  const auto whole = parse_gguf(bytes, "x");
  ASSERT_TRUE(whole.ok());
  const StoredTensor* end = (*whole)->find_tensor("i32");
  const auto needed = static_cast<size_t>(end->offset + end->size);
  for (size_t n = 0; n < bytes.size(); ++n) {
    // A copy of exactly n bytes, so that a sanitizer sees a read past the end.
    const std::vector<uint8_t> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
    const auto file = parse_gguf(cut, "x");
    ASSERT_EQ(file.ok(), n >= needed) << n;
    if (!file.ok()) {
      ASSERT_EQ(file.error().code, ErrorCode::kInvalidFile) << n;
    }
  }
}

TEST(GgufDamage, AnyByteChangedNeverCrashes) {
  const Sample sample;
  std::vector<uint8_t> bytes = sample.writer.to_bytes();
  size_t refused = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const uint8_t value : {0x00, 0x01, 0x7F, 0x80, 0xFF}) {
      const uint8_t before = std::exchange(bytes[at], value);
      const auto file = parse_gguf(bytes, "x");
      refused += !file.ok();
      if (!file.ok()) {
        ASSERT_FALSE(file.error().message.empty());
      }
      bytes[at] = before;
    }
  }
  EXPECT_GT(refused, 1000u);
}

TEST_F(GgufFiles, GoldensAreReadAsTheyWereMade) {
  size_t read = 0;
  for (const auto& entry : fs::directory_iterator(CUTAWAY_SOURCE_DIR "/tests/golden")) {
    if (entry.path().extension() != ".gguf") continue;
    const auto file = open_model_file(entry.path().string());
    ASSERT_TRUE(file.ok()) << file.error().message;
    const auto architecture = (*file)->metadata.string("general.architecture");
    ASSERT_TRUE(architecture.ok());
    // Mixtral's files say llama.
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(name.starts_with(*architecture) ||
                (name.starts_with("mixtral-") && *architecture == "llama"))
        << name << ": " << *architecture;
    EXPECT_NE((*file)->find_tensor("token_embd.weight"), nullptr);
    EXPECT_EQ((*file)->total_bytes(), fs::file_size(entry.path()));
    ++read;
  }
  EXPECT_GE(read, 30u);
}

TEST_F(GgufFiles, WriteIsAllOrNothing) {
  const Sample sample;
  const std::string target = path("out.gguf");
  ASSERT_TRUE(sample.writer.write(target).ok());
  const auto file = open_gguf(target);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const std::vector<uint8_t> bytes = sample.writer.to_bytes();
  ASSERT_EQ((*file)->total_bytes(), bytes.size());
  std::vector<uint8_t> read(bytes.size());
  ASSERT_TRUE((*file)->files[0].read(0, read).ok());
  EXPECT_EQ(read, bytes);
  EXPECT_EQ(files(), 1u) << "no temporary file stays";

  // What is open stays the old file while a new one takes its name.
  GgufWriter other;
  other.add("general.architecture", std::string("other"));
  ASSERT_TRUE(other.write(target).ok());
  EXPECT_EQ(*(*file)->metadata.string("general.architecture"), "llama");
  EXPECT_EQ((*file)->bytes_of(*(*file)->find_tensor("f16"))->at(3), 3);
  EXPECT_EQ(*(*open_gguf(target))->metadata.string("general.architecture"), "other");
  EXPECT_EQ(files(), 1u);

  const Status kept = sample.writer.write(target, false);
  ASSERT_FALSE(kept.ok());
  EXPECT_NE(kept.error().message.find("exists"), std::string::npos) << kept.error().message;
  EXPECT_EQ(*(*open_gguf(target))->metadata.string("general.architecture"), "other");
  EXPECT_EQ(files(), 1u);
  EXPECT_TRUE(sample.writer.write(path("new.gguf"), false).ok());
}

TEST_F(GgufFiles, WriteFailsWithTheSystemsReason) {
  const Sample sample;
  const Status missing = sample.writer.write(path("no/such/folder/x.gguf"));
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kIo);
  EXPECT_THAT(missing.error().message, HasSubstr("No such file or directory"));
  fs::create_directories(path("folder"));
  const Status folder = sample.writer.write(path("folder"));
  ASSERT_FALSE(folder.ok());
  EXPECT_THAT(folder.error().message, HasSubstr("folder exists and is not a regular file"));
  EXPECT_EQ(files(), 1u) << "no temporary file stays";
}

TEST_F(GgufFiles, DiskFullLeavesNothingBehind) {
  const Sample sample;
  // A file size limit fails the write midway, as a full disk does.
  struct rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small{1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = sample.writer.write(path("out.gguf"));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_THAT(status.error().message, HasSubstr("File too large"));
  EXPECT_EQ(files(), 0u);
}

TEST(GgufWriterChecks, NameWhatIsWrong) {
  const std::vector<uint8_t> data(64);
  const auto message = [&](auto fill) {
    GgufWriter writer;
    fill(writer);
    const Status status = writer.check();
    const Status written = writer.write("/nonexistent/never-made.gguf");
    EXPECT_FALSE(written.ok());
    return status.ok() ? std::string("accepted") : status.error().message;
  };
  using W = GgufWriter;
  EXPECT_THAT(message([](W& w) { w.add_u32("k", 1), w.add_u32("k", 2); }),
              HasSubstr("metadata key \"k\" was added twice"));
  EXPECT_THAT(message([](W& w) { w.add_u32("", 1); }), HasSubstr("has 0 bytes, expected 1 to"));
  EXPECT_THAT(message([](W& w) { w.add_u32("general.alignment", 12); }),
              HasSubstr("general.alignment must be an unsigned multiple of 8"));
  EXPECT_THAT(message([&](W& w) { w.add_tensor("t", DType::kF32, {5}, data); }),
              HasSubstr("tensor \"t\" of shape [5] F32 was given 64 bytes, expected 20"));
  EXPECT_THAT(message([&](W& w) { w.add_tensor("t", DType::kQ4_0, {2, 16}, data); }),
              HasSubstr("rows of 16 elements, Q4_0 needs a multiple of 32"));
  EXPECT_THAT(message([&](W& w) { w.add_tensor("t", DType::kF32, {0}, data); }),
              HasSubstr("has the shape [0]"));
  EXPECT_THAT(message([&](W& w) { w.add_tensor("t", DType::kF32, Shape(), data); }),
              HasSubstr("has no dimensions"));
  EXPECT_THAT(message([&](W& w) {
                w.add_tensor("t", DType::kF32, {16}, data);
                w.add_tensor("t", DType::kF32, {16}, data);
              }),
              HasSubstr("tensor \"t\" was added twice"));
  EXPECT_THAT(message([&](W& w) { w.add_tensor(std::string(1025, 'n'), DType::kF32, {16}, data); }),
              HasSubstr("has a name of 1025 bytes"));
}

TEST_F(GgufFiles, TheDoorSaysWhatItFound) {
  const auto message = [](const std::string& path) {
    const auto file = open_model_file(path);
    return file.ok() ? std::string("opened") : file.error().message;
  };
  EXPECT_THAT(message(path("missing.gguf")), HasSubstr("No such file"));
  EXPECT_EQ(open_model_file(path("missing.gguf")).error().code, ErrorCode::kNotFound);
  EXPECT_THAT(message(save("empty.gguf", "")), HasSubstr("is empty (0 bytes)"));
  EXPECT_THAT(message(save("lfs.gguf", "version https://git-lfs.github.com/spec/v1\n")),
              HasSubstr("a Git LFS pointer, not the model itself"));
  EXPECT_THAT(message(save("page.gguf", "<html><body>404")), HasSubstr("an HTML page"));
  EXPECT_THAT(message(save("m.safetensors", std::string("\x08\0\0\0\0\0\0\0{}      ", 16))),
              HasSubstr("is a safetensors file, which is not read yet"));
  EXPECT_THAT(message("/dev/null"), HasSubstr("is not a regular file"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(message(path("pipe")), HasSubstr("is not a regular file")) << "and does not wait";

  fs::create_directories(path("hf"));
  EXPECT_THAT(message(path("hf")), HasSubstr("is a folder; give a .gguf file"));
  save("hf/config.json", "{}");
  save("hf/model-b.gguf", "x");
  save("hf/model-a.gguf", "x");
  EXPECT_THAT(message(path("hf")),
              HasSubstr("Hugging Face and MLX folders are not read yet; give a .gguf file (it "
                        "holds \"model-a.gguf\" and 1 more)"));
  EXPECT_EQ(open_model_file(path("hf")).error().code, ErrorCode::kUnsupported);

  GgufWriter part;
  part.add("split.no", uint64_t{1});
  part.add("split.count", uint64_t{3});
  ASSERT_TRUE(part.write(path("part.gguf")).ok());
  EXPECT_THAT(message(path("part.gguf")),
              HasSubstr("is shard 2 of 3 of a split model; give the first one"));
  GgufWriter one;
  one.add("split.count", uint64_t{1});
  ASSERT_TRUE(one.write(path("by content.bin")).ok());
  EXPECT_EQ(message(path("by content.bin")), "opened") << "by content, not by name";
}

TEST_F(GgufFiles, UnreadableFile) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads everything";
  const std::string locked = save("locked.gguf", "GGUF");
  fs::permissions(locked, fs::perms::none);
  const auto file = open_model_file(locked);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kIo);
  EXPECT_THAT(file.error().message, HasSubstr("Permission denied"));
}

}  // namespace
}  // namespace cutaway::formats
