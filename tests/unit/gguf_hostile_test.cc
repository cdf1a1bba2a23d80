// Files that are not what they say: each gets an error that says what is wrong, and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/gguf.h"
#include "tests/unit/gguf_bytes.h"

namespace cutaway::formats {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kHuge = uint64_t{1} << 63;

struct Hostile {
  const char* name;
  GgufBytes bytes;
  ErrorCode code;
  const char* message;
};

GgufBytes b() { return {}; }
// One F32 tensor of four elements and its data.
GgufBytes one_tensor(std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
  return b().header(1, 0).tensor("t", std::move(dims), type, offset).pad().zeros(64);
}

std::vector<Hostile> headers() {
  const ErrorCode bad = ErrorCode::kInvalidFile, cannot = ErrorCode::kUnsupported;
  return {
      {"Empty", b(), bad, "is empty (0 bytes); expected a GGUF file"},
      {"MagicCut", b().raw("GG"), bad, "cut short: 2 bytes of a GGUF file's first 4"},
      {"Lfs", b().raw("version https://git-lfs.github.com/spec/v1\noid sha256:00"), bad,
       "a Git LFS pointer, not the model itself"},
      {"Zip", b().raw("PK\x03\x04").zeros(40), bad, "a ZIP archive"},
      {"Html", b().raw("\n <!DOCTYPE html><html>"), bad, "an HTML page"},
      {"Json", b().raw("{\"error\": \"not found\"}"), bad, "a JSON text"},
      {"Text", b().raw("Access denied"), bad, "begins with \"Access denied\""},
      {"Safetensors", b().u64(8).raw("{\"a\":{}}").zeros(64), bad, "a safetensors file"},
      {"OldGgml", b().raw("lmgg").zeros(64), bad, "an old GGML file"},
      {"Zeros", b().zeros(5000), bad, "zeros where the header should be"},
      {"Noise", b().raw("\x01\xFE\x90\x80\x81\xC0\xC1\xF5\xFF"), bad,
       "first bytes are 01 fe 90 80 81 c0 c1 f5"},
      {"Terminal", b().raw("\x1b[2Jhello"), bad, "first bytes are 1b 5b"},
      {"BigEndianMagic", b().raw("FUGG").zeros(64), bad, "a big-endian GGUF file"},
      {"BigEndian", b().raw("GGUF").u32(0x03000000).u64(0).u64(0), cannot, "is big-endian"},
      {"VersionCut", b().raw("GGUF").u8(3), bad, "byte 4: the version takes 4 bytes"},
      {"Version1", b().header(0, 0, 1), cannot, "byte 4: GGUF version 1 is not read; versions 2"},
      {"Version4", b().header(0, 0, 4), cannot, "GGUF version 4 is not read"},
      {"Version0", b().header(0, 0, 0), cannot, "GGUF version 0 is not read"},
      {"TensorCountHuge", b().header(kHuge, 0), bad,
       "byte 8: the tensor count is 9223372036854775808, but the 8 bytes that are left hold"},
      {"PairCountHuge", b().header(0, UINT64_MAX), bad,
       "byte 16: the metadata count is 18446744073709551615, but the 0 bytes"},
      {"TensorCountOneTooMany", b().header(2, 0).tensor("t", {4}, 0, 0).pad(), bad,
       "the tensor count is 2, but the 48 bytes"},
  };
}

std::vector<Hostile> metadata() {
  const ErrorCode bad = ErrorCode::kInvalidFile, cannot = ErrorCode::kUnsupported;
  return {
      {"KeyLengthHuge", b().header(0, 1).u64(kHuge).zeros(64), bad,
       "byte 24: metadata key 0 has a length of 9223372036854775808 bytes, but 64 are left"},
      {"KeyTooLong", b().header(0, 1).text(std::string(70000, 'k')).u32(4).u32(0), bad,
       "metadata key 0 has a length of 70000 bytes, at most 65535 are allowed"},
      {"KeyEmpty", b().header(0, 1).key("", 4).u32(1).zeros(8), bad, "metadata key 0 is empty"},
      {"KeyTwice", b().header(0, 2).key("a.b", 4).u32(1).key("a.b", 4).u32(1), bad,
       "byte 43: metadata key \"a.b\" appears twice"},
      {"KeyEscaped", b().header(0, 2).key("\x1b[31m", 4).u32(1).key("\x1b[31m", 4).u32(1), bad,
       "metadata key \"\\x1b[31m\" appears twice"},
      {"ValueType13", b().header(0, 1).key("k", 13).zeros(8), bad,
       "byte 33: metadata \"k\" has value type 13, expected 0 to 12"},
      {"ValueCut", b().header(0, 1).key("k", 10).u32(1), bad,
       "byte 37: the value of \"k\" takes 8 bytes, but the file ends after 4 more"},
      {"Bool2", b().header(0, 1).key("k", 7).u8(2), bad,
       "byte 37: metadata \"k\" is the boolean 2, expected 0 or 1"},
      {"StringLengthLies", b().header(0, 1).key("k", 8).u64(100).raw("short"), bad,
       "byte 37: metadata \"k\" has a length of 100 bytes, but 5 are left"},
      {"ArrayOfArrays", b().header(0, 1).array("k", 9, 1).u32(4).u64(1).u32(5), cannot,
       "byte 37: metadata \"k\" is an array of arrays (depth 2)"},
      {"ArrayType99", b().header(0, 1).array("k", 99, 1).zeros(8), bad,
       "byte 37: metadata \"k\" is an array of value type 99"},
      {"ArrayHuge", b().header(0, 1).array("k", 0, kHuge).zeros(8), bad,
       "byte 41: metadata \"k\" is an array of 9223372036854775808 elements, but the 8 bytes"},
      {"ArraySizeOverflows", b().header(0, 1).array("k", 10, kHuge / 4 + 1).zeros(8), bad,
       "array of 2305843009213693953 elements, but the 8 bytes that are left hold at most 1"},
      {"VocabularyCountLies",
       b().header(0, 1).array("tokenizer.ggml.tokens", 8, 3).text("aaaa").text("bbbb").raw("pad"),
       bad, "the length of element 2 of 3 of metadata \"tokenizer.ggml.tokens\" takes 8 bytes"},
      {"VocabularyStringLies",
       b().header(0, 1).array("tokenizer.ggml.tokens", 8, 2).text("a").u64(999).raw("b"), bad,
       "element 1 of 2 of metadata \"tokenizer.ggml.tokens\" has a length of 999 bytes, but 1"},
      {"ArrayU64TooLarge", b().header(0, 1).array("k", 10, 2).u64(1).u64(kHuge), bad,
       "byte 57: metadata \"k\", element 1, is 9223372036854775808, at most 9223372036854775807"},
      {"ArrayBool", b().header(0, 1).array("k", 7, 3).u8(0).u8(1).u8(7), bad,
       "byte 51: metadata \"k\", element 2, is the boolean 7"},
      {"AlignmentZero", b().header(0, 1).key("general.alignment", 4).u32(0), bad,
       "general.alignment is 0, expected 8 to 65536"},
      {"Alignment12", b().header(0, 1).key("general.alignment", 4).u32(12), bad,
       "general.alignment is 12, expected a multiple of 8"},
      {"AlignmentHuge", b().header(0, 1).key("general.alignment", 10).u64(kHuge), bad,
       "general.alignment is 9223372036854775808, expected 8 to 65536"},
      {"AlignmentString", b().header(0, 1).key("general.alignment", 8).text("32"), bad,
       "general.alignment is a string, expected an integer"},
  };
}

std::vector<Hostile> tensors() {
  const ErrorCode bad = ErrorCode::kInvalidFile, cannot = ErrorCode::kUnsupported;
  const std::string long_name(1025, 'n');
  return {
      {"NameEmpty", b().header(1, 0).tensor("", {4}, 0, 0).pad().zeros(64), bad,
       "byte 24: tensor name 0 is empty"},
      {"NameTooLong", b().header(1, 0).tensor(long_name, {4}, 0, 0).pad().zeros(64), bad,
       "tensor name 0 has a length of 1025 bytes, at most 1024"},
      {"NameTwice", b().header(2, 0).tensor("t", {4}, 0, 0).tensor("t", {4}, 0, 32).pad().zeros(64),
       bad, "tensor \"t\" appears twice"},
      {"Rank0", one_tensor({}, 0, 0), bad,
       "byte 33: tensor \"t\" has 0 dimensions, expected 1 to 4"},
      {"Rank5", one_tensor({1, 1, 1, 1, 1}, 0, 0), bad, "tensor \"t\" has 5 dimensions"},
      {"DimZero", one_tensor({4, 0}, 0, 0), bad,
       "byte 45: tensor \"t\" has a dimension 1 of 0, expected 1 to"},
      {"DimNegative", one_tensor({UINT64_MAX}, 0, 0), bad,
       "has a dimension 0 of 18446744073709551615"},
      {"DimsOverflow", one_tensor({uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0), bad,
       "tensor \"t\" has more than 9223372036854775807 elements at dimension 1"},
      {"BytesOverflow", one_tensor({INT64_MAX}, 0, 0), bad, "F32 elements is too large"},
      {"TypeIQ2S", one_tensor({256}, 22, 0), cannot,
       "tensor \"t\" has type IQ2_S, which is not read yet; F32, F16, BF16, Q8_0, Q4_0, Q4_1, "},
      {"TypeRemoved", one_tensor({32}, 4, 0), cannot, "has type Q4_2 (removed)"},
      {"TypeUnknown", one_tensor({32}, 1000, 0), bad, "tensor \"t\" has the unknown type 1000"},
      {"RowNotOfBlocks", one_tensor({33}, 2, 0), bad,
       "tensor \"t\" has rows of 33 elements, Q4_0 needs a multiple of 32"},
      {"RowNotOfBlocksButProduct", one_tensor({16, 2}, 8, 0), bad,
       "tensor \"t\" has rows of 16 elements, Q8_0 needs a multiple of 32"},
      {"OffsetUnaligned", one_tensor({4}, 0, 16), bad,
       "byte 49: tensor \"t\" is at offset 16, expected a multiple of the alignment 32"},
      {"OffsetPastEnd", one_tensor({4}, 0, 64), bad,
       "tensor \"t\" needs 16 bytes at offset 64 of the data, which has 64 bytes"},
      {"OffsetWraps", one_tensor({4}, 0, UINT64_MAX - 31), bad, "needs 16 bytes at offset"},
      {"SizePastEnd", one_tensor({17}, 0, 0), bad, "needs 68 bytes at offset 0 of the data"},
      {"NoData", b().header(1, 0).tensor("t", {4}, 0, 0), bad, "of the data, which has 0 bytes"},
      {"Overlap", b().header(2, 0).tensor("a", {16}, 0, 0).tensor("b", {4}, 0, 32).pad().zeros(64),
       bad, "tensor \"b\" at offset 32 overlaps tensor \"a\" (offset 0, 64 bytes)"},
      {"OverlapBackwards",
       b().header(2, 0).tensor("a", {4}, 0, 32).tensor("b", {9}, 0, 0).pad().zeros(64), bad,
       "tensor \"a\" at offset 32 overlaps tensor \"b\" (offset 0, 36 bytes)"},
      {"SameBytes", b().header(2, 0).tensor("a", {4}, 0, 0).tensor("b", {4}, 0, 0).pad().zeros(64),
       bad, "overlaps"},
      {"EntryCut", b().header(1, 0).text("t").u32(2).u64(4).zeros(30), bad,
       "has a dimension 1 of 0"},
  };
}

class GgufHostile : public ::testing::TestWithParam<Hostile> {};

TEST_P(GgufHostile, IsRefusedWithItsMessage) {
  const auto file = parse_gguf(GetParam().bytes.bytes(), "x.gguf");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, GetParam().code);
  EXPECT_THAT(file.error().message, HasSubstr(GetParam().message));
  EXPECT_THAT(file.error().message, ::testing::StartsWith("x.gguf"));
}

const auto kName = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Header, GgufHostile, ::testing::ValuesIn(headers()), kName);
INSTANTIATE_TEST_SUITE_P(Metadata, GgufHostile, ::testing::ValuesIn(metadata()), kName);
INSTANTIATE_TEST_SUITE_P(Tensors, GgufHostile, ::testing::ValuesIn(tensors()), kName);

// The base of the one_tensor cases is itself in order, so that each fails for its own reason.
TEST(GgufHostileBase, IsAccepted) {
  const GgufBytes bytes = one_tensor({4}, 0, 0);
  EXPECT_TRUE(parse_gguf(bytes.bytes(), "x").ok());
}

}  // namespace
}  // namespace cutaway::formats
