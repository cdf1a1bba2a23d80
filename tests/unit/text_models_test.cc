// The tokenizers of tokenizer.ggml.model = llama, gemma4, bert and t5, on small vocabularies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/utf8.h"
#include "text/tokenizer/charsmap.h"
#include "text/tokenizer/spaces.h"
#include "text/tokenizer/tokenizer.h"

namespace cutaway::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Builder {
  std::string model = "llama";
  std::vector<std::string> tokens, merges;
  std::vector<int64_t> types;
  std::vector<double> scores;
  std::vector<std::pair<std::string, MetaValue>> extra;

  int32_t add(std::string token, double score = 0, int64_t type = 1) {
    tokens.push_back(std::move(token));
    types.push_back(type);
    scores.push_back(score);
    return static_cast<int32_t>(tokens.size() - 1);
  }
  void bytes() {
    for (int b = 0; b < 256; ++b) {
      char spelling[8];
      std::snprintf(spelling, sizeof spelling, "<0x%02X>", static_cast<unsigned>(b));
      add(spelling, 0, 6);
    }
  }
  Result<std::shared_ptr<const Tokenizer>> create() const {
    Metadata m;
    m.insert("tokenizer.ggml.model", model);
    m.insert("tokenizer.ggml.tokens", tokens);
    m.insert("tokenizer.ggml.token_type", types);
    m.insert("tokenizer.ggml.scores", scores);
    if (model == "gemma4") m.insert("tokenizer.ggml.merges", merges);
    for (const auto& [key, value] : extra) m.insert(key, value);
    return Tokenizer::create(m);
  }
};

std::vector<int32_t> ids(const Tokenizer& t, std::string_view text, bool special = false) {
  const auto ids = t.encode_ids(text, special, false);
  EXPECT_TRUE(ids.ok()) << ids.error().message;
  return ids.ok() ? *ids : std::vector<int32_t>();
}

// 0–2 <unk> <s> </s>, 3–258 the bytes.
Builder sentencepiece() {
  Builder b;
  b.add("<unk>", 0, 2);
  b.add("<s>", 0, 3);
  b.add("</s>", 0, 3);
  b.bytes();
  b.add("\u2581", -9);          // 259
  b.add("a", -10);              // 260
  b.add("b", -11);              // 261
  b.add("ab", -2);              // 262
  b.add("\u2581a", -1);         // 263
  b.add("aa", -3);              // 264
  b.add("\u2581ab", -4);        // 265
  b.add("\uD55C", -12);         // 266
  b.add("<tool>", 0, 4);        // 267
  b.add("\u2581\u2581", 0, 4);  // 268: found as two spaces
  return b;
}

TEST(SentencePiece, HighestScoreFirstThenLeftmost) {
  const auto t = *sentencepiece().create();
  EXPECT_THAT(ids(*t, "ab"), ElementsAre(265));  // "_a" before "ab", then "_a" and "b"
  EXPECT_THAT(ids(*t, "baaa"), ElementsAre(259, 261, 264, 260));
  EXPECT_THAT(ids(*t, ""), IsEmpty());
  EXPECT_THAT(*t->encode_ids("a", false, true),
              ElementsAre(1, 263));  // BOS unless the file says no
}

TEST(SentencePiece, ByteTokensStandForWhatHasNoToken) {
  const auto t = *sentencepiece().create();
  EXPECT_THAT(ids(*t, "\n\uD55C\xFF"), ElementsAre(259, 3 + 0x0A, 266, 3 + 0xFF));
  EXPECT_EQ(t->decode(ids(*t, "\xFF\xC3 x\uAC00"), false), "\xFF\xC3 x\uAC00");
  EXPECT_EQ(t->token_type(3), TokenType::kByte);
}

TEST(SentencePiece, SpacesComeBack) {
  Builder plain = sentencepiece();
  plain.types.back() = 1;  // two spaces are no token of their own: what follows one gets a space
  const auto t = *plain.create();
  for (const std::string text : {"a", " a", "  a", "a  ", " ", "   ", "b a"}) {
    EXPECT_EQ(t->decode(ids(*t, text), false), text);
  }
  EXPECT_EQ(t->decode(ids(*t, "a\u2581b"), false), "a b");  // the sign is a space to the model
  EXPECT_EQ(t->normalization(), Tokenizer::Normalization::kSpaces);
  Builder no_prefix = sentencepiece();
  no_prefix.extra.push_back({"tokenizer.ggml.add_space_prefix", false});
  EXPECT_THAT(ids(**no_prefix.create(), "ab"), ElementsAre(262));
}

TEST(SentencePiece, ControlTokensComeFromTrustedTextOnly) {
  const auto t = *sentencepiece().create();
  EXPECT_THAT(ids(*t, "a</s>a", true), ElementsAre(263, 2, 263));
  EXPECT_EQ(t->decode(ids(*t, "a</s>a"), true), "a</s>a");
  for (const int32_t id : ids(*t, "a</s>a")) EXPECT_NE(id, 2);
  EXPECT_THAT(ids(*t, "<tool>"), ElementsAre(267));
  EXPECT_THAT(ids(*t, "b  b"), ElementsAre(259, 261, 268, 259, 261));
  EXPECT_EQ(t->token_bytes(2, false), "");
  EXPECT_EQ(t->token_bytes(2, true), "</s>");
}

TEST(SentencePiece, RangesCoverTheInput) {
  const auto t = *sentencepiece().create();
  const std::string text = "ab \u2581a\uD55C b";
  const Segment segment{text, false};
  size_t at = 0;
  const auto tokens = *t->encode(std::span(&segment, 1), {.add_special = false});
  for (const EncodedToken& token : tokens) {
    EXPECT_EQ(token.begin, at);
    at = token.end;
  }
  EXPECT_EQ(at, text.size());
}

TEST(SentencePiece, WithoutByteTokensARunIsOneUnknown) {
  Builder b;
  b.add("<unk>", 0, 2);
  b.add("<s>", 0, 3);
  b.add("</s>", 0, 3);
  b.add("\u2581", -1);
  b.add("a", -2);
  const auto t = *b.create();
  EXPECT_THAT(ids(*t, "axyza"), ElementsAre(3, 4, 0, 4));
  const auto words = *t->trace_merges(std::array{Segment{"axyza", false}});
  std::vector<int32_t> traced;
  for (const TracedWord& w : words) traced.insert(traced.end(), w.ids.begin(), w.ids.end());
  EXPECT_THAT(traced, ElementsAre(3, 4, 0, 4));
}

TEST(SentencePiece, AMillionCharactersInOneRun) {
  const auto t = *sentencepiece().create();
  std::string text(1'000'000, 'a');
  const auto run = ids(*t, text);
  EXPECT_EQ(run.size(), 500'001u);  // "_a", then "aa" from the left, one "a" left over
  EXPECT_EQ(t->decode(run, false), text);
}

TEST(SentencePiece, BadFilesAreRefusedByKey) {
  Builder b = sentencepiece();
  b.scores[5] = std::nan("");
  EXPECT_THAT(b.create().error().message, HasSubstr("tokenizer.ggml.scores[5]"));
  b.scores.pop_back();
  EXPECT_THAT(b.create().error().message, HasSubstr("must be as many"));
  b = sentencepiece();
  b.tokens[3] = "<0xZZ>";
  EXPECT_THAT(b.create().error().message, HasSubstr("tokenizer.ggml.tokens[3] is a byte token"));
}

TEST(Gemma4, MergesOfCharacters) {
  Builder b;
  b.model = "gemma4";
  b.bytes();
  b.add("\u2581");   // 256
  b.add("a");        // 257
  b.add("\u2581a");  // 258
  b.add("aa");       // 259
  b.merges = {"a a", "\u2581 a"};
  b.extra.push_back({"tokenizer.ggml.add_bos_token", false});
  const auto t = *b.create();
  EXPECT_THAT(ids(*t, "a a aa"), ElementsAre(257, 258, 256, 259));
  EXPECT_EQ(t->decode(ids(*t, "  a\tb"), false), "  a\tb");
  b.merges.push_back("a c");
  EXPECT_THAT(b.create().error().message, HasSubstr("tokenizer.ggml.merges[2]"));
}

Builder bert() {
  Builder b;
  b.model = "bert";
  for (const char* special : {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}) b.add(special, 0, 3);
  for (const char* token :
       {"\u2581un", "aff", "able", "\u2581e", "\u2581\u4E2D", "\u2581,", "\u2581a", "a"}) {
    b.add(token);  // from 4
  }
  b.extra = {{"tokenizer.ggml.unknown_token_id", int64_t{1}},
             {"tokenizer.ggml.cls_token_id", int64_t{2}},
             {"tokenizer.ggml.seperator_token_id", int64_t{3}}};
  return b;
}

TEST(WordPiece, LongestFirstOrUnknown) {
  const auto t = *bert().create();
  EXPECT_THAT(ids(*t, "unaffable"), ElementsAre(4, 5, 6));
  EXPECT_THAT(ids(*t, "unaffed a"), ElementsAre(1, 10));
  EXPECT_THAT(*t->encode_ids("UN", false, true), ElementsAre(2, 4, 3));
  EXPECT_EQ(t->decode(std::array{4, 5, 6, 10}, false), "unaffable a");
}

TEST(WordPiece, AccentsCaseChineseAndControlCharacters) {
  const auto t = *bert().create();
  EXPECT_THAT(ids(*t, "\u00C9,e\u0301"), ElementsAre(7, 9, 7));
  EXPECT_THAT(ids(*t, "a\u4E2D\u4E2Da"), ElementsAre(10, 8, 8, 10));
  EXPECT_THAT(ids(*t, "u\u200Dn\x01"), ElementsAre(4));
  EXPECT_THAT(ids(*t, "a\t\na\u3000a"), ElementsAre(10, 10, 10));
  EXPECT_THAT(ids(*t, "a\xFF"), ElementsAre(1));
  Builder cased = bert();
  cased.extra.push_back({"tokenizer.ggml.normalizer.lowercase", false});
  EXPECT_THAT(ids(**cased.create(), "UN un"), ElementsAre(1, 4));
}

TEST(WordPiece, AWordOfMoreThanHundredCharactersIsUnknown) {
  const auto t = *bert().create();
  EXPECT_EQ(ids(*t, std::string(100, 'a')).size(), 100u);
  EXPECT_THAT(ids(*t, std::string(101, 'a')), ElementsAre(1));
  EXPECT_THAT(ids(*t, std::string(1'000'000, 'a')), ElementsAre(1));
}

TEST(WordPiece, RangesAreThoseOfTheInput) {
  const auto t = *bert().create();
  const Segment segment{" \u00C9 unaffable", false};
  const auto tokens = *t->encode(std::span(&segment, 1), {.add_special = false});
  ASSERT_EQ(tokens.size(), 4u);
  EXPECT_EQ(tokens[0].begin, 1u);
  EXPECT_EQ(tokens[0].end, 3u);
  EXPECT_EQ(tokens[2].begin, 6u);
  EXPECT_EQ(tokens[2].end, 9u);
}

Builder unigram() {
  Builder b;
  b.model = "t5";
  b.add("<pad>", 0, 3);
  b.add("</s>", 0, 3);
  b.add("<unk>", 0, 2);
  b.add("\u2581", -3);   // 3
  b.add("a", -4);        // 4
  b.add("b", -4);        // 5
  b.add("ab", -7);       // 6
  b.add("\u2581a", -6);  // 7
  b.add("ba", -8);       // 8: as much as "b" and "a"
  return b;
}

TEST(Unigram, GreatestSumAndTheFirstOfEqualOnes) {
  const auto t = *unigram().create();
  EXPECT_THAT(ids(*t, "ab"), ElementsAre(3, 6));      // −10, as "_a" and "b": met first
  EXPECT_THAT(ids(*t, "bba"), ElementsAre(3, 5, 8));  // −8 both ways: "ba" is met first
  EXPECT_THAT(*t->encode_ids("a", false, true), ElementsAre(7, 1));
  EXPECT_THAT(ids(*t, "xyza"), ElementsAre(3, 2, 4));
  EXPECT_EQ(t->decode(ids(*t, "a b ab"), false), "a b ab");
}

TEST(Unigram, ExtraSpacesGoWhereTheFileSaysSo) {
  Builder b = unigram();
  b.extra.push_back({"tokenizer.ggml.remove_extra_whitespaces", true});
  const auto t = *b.create();
  EXPECT_EQ(ids(*t, "  a   b "), ids(*t, "a b"));
  EXPECT_THAT(ids(*t, "   "), IsEmpty());
  EXPECT_EQ(t->normalization(), Tokenizer::Normalization::kLossy);
}

TEST(SpacedTextTest, RulesAndTheWayBack) {
  const SpacedText spaced("  a \u2581 b ", {.add_prefix = true, .remove_extra = true});
  EXPECT_EQ(spaced.text(), " a b");
  EXPECT_EQ(spaced.input_begin(1), 2u);  // a
  EXPECT_EQ(spaced.input_begin(3), 8u);  // b
  EXPECT_EQ(SpacedText("a b", {}).text(), "a b");
  EXPECT_FALSE(SpacedText("a b", {}).changed());
}

// A map with one rule, A → "xy", as a double array: the root's base is 0x100, the node of 'A'
// (0x41) is at 0x141, its value at that node's base.
std::vector<int64_t> map_of_a(uint32_t value) {
  std::vector<uint32_t> units(0x200);
  units[0] = 0x100u << 10;
  units[0x141] = 0x41u | 1u << 8 | (0x141u ^ 0x150u) << 10;
  units[0x150] = 1u << 31 | value;
  std::vector<int64_t> bytes;
  const auto push = [&](uint32_t unit) {
    for (int i = 0; i < 4; ++i) bytes.push_back(unit >> (8 * i) & 0xFF);
  };
  push(static_cast<uint32_t>(units.size() * 4));
  for (const uint32_t unit : units) push(unit);
  for (const char c : std::string("\0xy\0", 4)) bytes.push_back(c);
  return bytes;
}

TEST(CharacterMapTest, ReplacesAndKeepsTheWayBack) {
  Metadata m;
  m.insert("tokenizer.ggml.precompiled_charsmap", map_of_a(1));
  const CharacterMap map = *CharacterMap::read(m);
  const MappedText mapped("bAb\xFF", map);
  EXPECT_EQ(mapped.text(), "bxyb\uFFFD");
  EXPECT_EQ(mapped.input_begin(2), 1u);
  EXPECT_EQ(mapped.input_begin(3), 2u);
}

TEST(CharacterMapTest, BadMapsAreRefused) {
  const auto error = [](std::vector<int64_t> bytes) {
    Metadata m;
    m.insert("tokenizer.ggml.precompiled_charsmap", std::move(bytes));
    const auto map = CharacterMap::read(m);
    EXPECT_FALSE(map.ok());
    return map.ok() ? "" : map.error().message;
  };
  EXPECT_THAT(error({1, 2}), HasSubstr("the first four are a length"));
  EXPECT_THAT(error({255, 255, 255, 255, 0}), HasSubstr("the length in its first four bytes"));
  EXPECT_THAT(error(map_of_a(4)), HasSubstr("a replacement at 4"));
  std::vector<int64_t> endless = map_of_a(1);
  endless.back() = 'z';
  EXPECT_THAT(error(endless), HasSubstr("has no end"));
}

}  // namespace
}  // namespace cutaway::text
