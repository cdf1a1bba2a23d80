// Our tokens, and the text that becomes of them, against those of Hugging Face `tokenizers` and of
// SentencePiece, for real vocabularies; and our character classes against theirs, over all code
// points. The files come from `tools/make_oracle.py tokenizers`; without them the tests are
// skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <random>

#include "base/json.h"
#include "base/utf8.h"
#include "formats/gguf.h"
#include "tests/oracle/oracle_files.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/unicode.h"

namespace cutaway::text {
namespace {

bool has_token_for_every_byte(const Tokenizer& tokenizer, const std::string& text) {
  std::array<bool, 256> known{};
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id, true);
    if (bytes.size() == 1 && tokenizer.token_type(id) == TokenType::kNormal) {
      known[static_cast<uint8_t>(bytes[0])] = true;
    }
  }
  for (const char c : text) {
    if (!known[static_cast<uint8_t>(c)]) return false;
  }
  return true;
}

// What stands for an unknown token in a text is everybody's own, and so are spaces around one of
// BERT's special tokens.
bool has_unknown(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  return std::any_of(ids.begin(), ids.end(), [&](int32_t id) {
    const TokenType type = tokenizer.token_type(id);
    return type == TokenType::kUnknown ||
           (type == TokenType::kControl && tokenizer.model_name() == "bert");
  });
}

// DeepSeek's added tokens "ö", "ü" and the like are letters that as characters of byte-level BPE
// also stand for a byte. `tokenizers` decodes them as that byte, so that its text is not the one
// that was encoded; ours is.
bool has_letter_spelled_as_byte(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  return std::any_of(ids.begin(), ids.end(), [&](int32_t id) {
    const std::string_view spelling = tokenizer.token_bytes(id, true);
    return tokenizer.token_type(id) == TokenType::kUserDefined && spelling.size() == 2 &&
           (spelling[0] == '\xC2' || spelling[0] == '\xC3');
  });
}

class TokenizerOracle : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::filesystem::path gguf =
        tokenizer_oracle_folder() / (std::string(GetParam()) + ".gguf");
    if (!std::filesystem::exists(gguf)) {
      GTEST_SKIP() << gguf << " is not there: run tools/make_oracle.py tokenizers";
    }
    auto file = formats::open_gguf(gguf.string());
    ASSERT_TRUE(file.ok()) << file.error().message;
    auto tokenizer = Tokenizer::create((*file)->metadata);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    tokenizer_ = *tokenizer;
  }
  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_P(TokenizerOracle, SameTokensOnEveryCase) {
  std::ifstream lines(tokenizer_oracle_folder() / (std::string(GetParam()) + ".jsonl"));
  const std::string_view name = GetParam();
  const bool letters_for_bytes = name == "deepseek-llm" || name == "deepseek-coder";
  size_t equal = 0, refused = 0, different = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json test = Json::parse(line);
    const std::string text = from_base64(test["text"].get<std::string>());
    const auto expected = test["ids"].get<std::vector<int32_t>>();
    const bool parse_special = test["parse_special"].get<bool>();
    const auto ids = tokenizer_->encode_ids(text, parse_special, false);
    if (!ids.ok()) {
      // `tokenizers` leaves out a byte that the vocabulary has no token for. We say so, and do the
      // same when asked to.
      ASSERT_FALSE(has_token_for_every_byte(*tokenizer_, text)) << ids.error().message;
      EXPECT_NE(tokenizer_->decode(expected, true), text);
      const Segment segment{text, parse_special};
      const auto tokens = tokenizer_->encode(std::span(&segment, 1), {false, true});
      ASSERT_TRUE(tokens.ok()) << tokens.error().message;
      std::vector<int32_t> kept;
      for (const EncodedToken& token : *tokens) kept.push_back(token.id);
      ++refused;
      if (kept != expected && ++different <= 5) ADD_FAILURE() << line.substr(0, 2000);
      continue;
    }
    if (*ids == expected) {
      ++equal;
      const std::string wanted =
          test.contains("decoded") ? from_base64(test["decoded"].get<std::string>()) : text;
      const std::string decoded = utf8_replace_invalid(tokenizer_->decode(expected, true));
      if (letters_for_bytes && has_letter_spelled_as_byte(*tokenizer_, expected)) {
        EXPECT_EQ(decoded, text) << "decode: " << line.substr(0, 400);
      } else if (!has_unknown(*tokenizer_, expected)) {
        EXPECT_EQ(decoded, wanted) << "decode: " << line.substr(0, 400);
      }
      const auto words = tokenizer_->trace_merges(std::array{Segment{text, parse_special}});
      ASSERT_TRUE(words.ok());
      std::vector<int32_t> traced;
      for (const TracedWord& word : *words) {
        traced.insert(traced.end(), word.ids.begin(), word.ids.end());
      }
      EXPECT_EQ(traced, *ids) << "trace_merges: " << line.substr(0, 400);
    } else if (++different <= 5) {
      ADD_FAILURE() << line.substr(0, 2000) << "\nours: " << testing::PrintToString(*ids);
    }
  }
  EXPECT_GT(equal + refused, 10000u);
  EXPECT_EQ(different, 0u);
  std::printf(
      "%s: %zu cases equal, %zu more equal with bytes that have no token dropped, %zu different\n",
      GetParam(), equal, refused, different);
}

// Bytes that are no UTF-8 come back as they were, where the vocabulary has all bytes.
TEST_P(TokenizerOracle, RandomBytesComeBack) {
  std::mt19937 random(7);
  size_t same = 0, refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 64, ' ');
    for (char& c : text) c = static_cast<char>(random() % 3 ? random() % 256 : 'a' + random() % 26);
    const auto ids = tokenizer_->encode_ids(text, i % 2 == 0, false);
    if (!ids.ok()) {
      ASSERT_FALSE(has_token_for_every_byte(*tokenizer_, text));
      ++refused;
      continue;
    }
    const std::string back = tokenizer_->decode(*ids, true);
    // (Valid text may change under NFC; other bytes must not.)
    switch (tokenizer_->normalization()) {
      case Tokenizer::Normalization::kNone:
        EXPECT_EQ(back, text);
        break;
      case Tokenizer::Normalization::kNfc:
        if (!utf8_valid(text)) EXPECT_EQ(back, text);
        break;
      case Tokenizer::Normalization::kSpaces:
        if (text.find("\u2581") == std::string::npos) EXPECT_EQ(back, text);
        break;
      case Tokenizer::Normalization::kLossy:
        break;
    }
    ++same;
  }
  EXPECT_GT(same, 0u);
  std::printf("%s: %zu byte strings come back, %zu refused\n", GetParam(), same, refused);
}

INSTANTIATE_TEST_SUITE_P(Real, TokenizerOracle,
                         testing::Values("smollm2", "gpt-2", "qwen2", "qwen3", "llama-3.1",
                                         "gemma-3", "deepseek-v3", "gpt-oss", "llama-spm",
                                         "bert-bge", "baichuan", "nomic-bert-moe", "command-r",
                                         "deepseek-coder", "deepseek-llm", "falcon", "mpt",
                                         "refact", "starcoder", "qwen35", "phi-3", "gemma-4",
                                         "aquila", "gpt-neox"),
                         [](const auto& info) { return test_name(info.param); });

TEST(UnicodeOracle, ClassesOfEveryCodePoint) {
  const std::filesystem::path path = tokenizer_oracle_folder() / "unicode_categories.bin";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << path << " is not there: run tools/make_oracle.py tokenizers";
  }
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> expected((std::istreambuf_iterator<char>(in)), {});
  ASSERT_EQ(expected.size(), 0x110000u);
  const UnicodeTable& table = UnicodeTable::get();
  size_t different = 0;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    const int flags = table.flags(c) & (kLetter | kNumber | kSpace | kDigit);
    if (flags != expected[c] && ++different <= 5) {
      ADD_FAILURE() << std::hex << "U+" << c << ": ours " << flags << ", theirs " << +expected[c];
    }
  }
  EXPECT_EQ(different, 0u);
  std::printf("1114112 code points, %zu different\n", different);
}

}  // namespace
}  // namespace cutaway::text
