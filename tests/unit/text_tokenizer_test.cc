#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <thread>

#include "tests/unit/text_testing.h"
#include "text/tokenizer/bpe_merges.h"
#include "text/tokenizer/nfc.h"
#include "text/tokenizer/pretokenizer.h"

namespace cutaway::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_vocab::spell;
using testing_vocab::VocabBuilder;

std::vector<std::string> cut(const std::string& pre, std::string_view text) {
  const PreTokenizer* p = *find_pre_tokenizer(pre);
  std::vector<std::string> words;
  EXPECT_TRUE(p->for_each_word(UnicodeTable::get(), text, [&](std::string_view word) -> Status {
                 EXPECT_FALSE(word.empty());
                 words.emplace_back(word);
                 return {};
               }).ok());
  return words;
}

TEST(PreTokenizer, Gpt2) {
  EXPECT_THAT(cut("gpt-2", "I'll pay  $12, ok?!\n\n x"),
              ElementsAre("I", "'ll", " pay", " ", " $", "12", ",", " ok", "?!", "\n\n", " x"));
  EXPECT_THAT(cut("gpt-2", "it'S 's"), ElementsAre("it", "'", "S", " '", "s"));
  EXPECT_THAT(cut("", "a   "), ElementsAre("a", "   "));
  EXPECT_THAT(cut("default", "a \xC3\xA9"), ElementsAre("a", " \xC3\xA9"));
}

TEST(PreTokenizer, SmollmCutsDigitsFirst) {
  EXPECT_THAT(cut("smollm", "a12  3b 4"), ElementsAre("a", "1", "2", "  ", "3", "b", " ", "4"));
  // The white space in front of a digit is all there: the text is cut before the expression runs.
  EXPECT_THAT(cut("gpt-2", "x  3"), ElementsAre("x", " ", " 3"));
  EXPECT_THAT(cut("smollm", "\xC2\xBD!1"), ElementsAre("\xC2\xBD", "!", "1"));
}

TEST(PreTokenizer, Qwen2) {
  EXPECT_THAT(
      cut("qwen2", "He'S (ok) 123\r\n  \n x\t\ty"),
      ElementsAre("He", "'S", " (", "ok", ")", " ", "1", "2", "3", "\r\n  \n", " x", "\t", "\ty"));
  EXPECT_THAT(cut("qwen2", "a'\xC5\xBF' b!\n\nc"),
              ElementsAre("a", "'\xC5\xBF", "'", " b", "!\n\n", "c"));
  EXPECT_THAT(cut("qwen2", "  \n\n  "), ElementsAre("  \n\n", "  "));
}

TEST(PreTokenizer, LlamaTakesThreeDigits) {
  EXPECT_THAT(cut("llama-bpe", "x 1234567"), ElementsAre("x", " ", "123", "456", "7"));
  EXPECT_THAT(cut("llama3", "'hello"), ElementsAre("'hello"));
}

TEST(PreTokenizer, FalconCutsDigitsOutOfBytes) {
  EXPECT_THAT(cut("falcon", " 12, 12345"), ElementsAre(" ", "12", ",", " ", "123", "45"));
  // D0 BC D0 B8: as a character of byte-level BPE, BC is a fraction.
  EXPECT_THAT(cut("falcon", "\u043C\u0438"), ElementsAre("\xD0", "\xBC", "\xD0\xB8"));
}

TEST(PreTokenizer, StrayBytesAreNeitherLettersNorSpaces) {
  EXPECT_THAT(cut("gpt-2", "a\xFF\x80 b"), ElementsAre("a", "\xFF\x80", " b"));
  EXPECT_THAT(cut("qwen2", "\xE2\x82"), ElementsAre("\xE2\x82"));
}

TEST(PreTokenizer, UnknownNameIsAnErrorThatListsTheKnown) {
  const auto p = find_pre_tokenizer("gpt-9");
  ASSERT_FALSE(p.ok());
  EXPECT_EQ(p.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(p.error().message, HasSubstr("\"gpt-9\""));
  EXPECT_THAT(p.error().message, HasSubstr("smollm"));
}

VocabBuilder hello() {
  VocabBuilder b = VocabBuilder::bytes();
  b.merge("l", "l");     // 256
  b.merge("h", "e");     // 257
  b.merge("he", "ll");   // 258
  b.merge("hell", "o");  // 259
  b.merge(" ", "a");     // 260
  b.merge("l", "o");     // 261
  return b;
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  const auto t = hello().build();
  EXPECT_THAT(*t->encode_ids("hello", false, false), ElementsAre(259));
  EXPECT_THAT(*t->encode_ids("lll", false, false), ElementsAre(256, 'l'));
  EXPECT_THAT(*t->encode_ids("lo lla", false, false), ElementsAre(261, ' ', 256, 'a'));
}

TEST(Bpe, TraceShowsEachMergeInOrder) {
  const auto t = hello().build();
  const Segment segment{"x hello a", false};
  const auto words = *t->trace_merges(std::span(&segment, 1));
  ASSERT_EQ(words.size(), 3u);
  const TracedWord& word = words[1];
  EXPECT_EQ(word.begin, 1u);
  EXPECT_EQ(word.end, 7u);
  EXPECT_THAT(word.ids, ElementsAre(' ', 259));
  ASSERT_EQ(word.merges.size(), 4u);
  EXPECT_EQ(word.merges[0].rank, 0);
  EXPECT_EQ(word.merges[0].left, "l");
  EXPECT_EQ(word.merges[0].begin, 4u);
  EXPECT_EQ(word.merges[0].end, 6u);
  EXPECT_EQ(word.merges[1].rank, 1);
  EXPECT_EQ(word.merges[3].left, "hell");
  EXPECT_EQ(word.merges[3].right, "o");
  EXPECT_EQ(word.merges[3].begin, 2u);
  EXPECT_EQ(words[2].merges[0].rank, 4);
}

TEST(Bpe, RangesCoverTheInput) {
  const auto t = hello().build();
  const std::string text = "hello lolly \xED\x95\x9C a";
  const Segment segment{text, false};
  size_t at = 0;
  const auto tokens = *t->encode(std::span(&segment, 1), {});
  for (const EncodedToken& token : tokens) {
    EXPECT_EQ(token.begin, at);
    EXPECT_EQ(t->token_bytes(token.id, true), text.substr(token.begin, token.end - token.begin));
    at = token.end;
  }
  EXPECT_EQ(at, text.size());
}

TEST(Bpe, AWholeWordThatMergesElsewhereIsNotTaken) {
  // "abc" is a token, but a+b never happens first: b+c does, and nothing joins a to bc.
  VocabBuilder b = VocabBuilder::bytes();
  const int32_t bc = b.merge("b", "c");
  const int32_t ab = b.merge("a", "b");
  const int32_t abc = b.merge("ab", "c");
  const auto t = b.build();
  for (int i = 0; i < 3; ++i) {  // the second time the answer comes from what was learnt
    EXPECT_THAT(*t->encode_ids("abc", false, false), ElementsAre('a', bc));
    EXPECT_THAT(*t->encode_ids("ab", false, false), ElementsAre(ab));
  }
  for (const char* pre : {"llama-bpe", "glm4"}) {  // ignore_merges: there it is taken
    b.pre = pre;
    EXPECT_THAT(*b.build()->encode_ids("abc", false, false), ElementsAre(abc)) << pre;
  }
}

// Whether a token comes out whole is found from how it is made; trace_merges merges its bytes.
TEST(Bpe, WholeTokensAreThoseThatMergingEndsAt) {
  std::mt19937 random(11);
  size_t whole = 0, others = 0;
  for (int i = 0; i < 400; ++i) {
    VocabBuilder b = VocabBuilder::bytes();
    std::vector<std::string> tokens = {"a", "b", "c"};
    for (int k = 0; k < 14; ++k) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      if (left.size() + right.size() > 12) continue;
      if (std::find(tokens.begin(), tokens.end(), left + right) != tokens.end()) continue;
      b.merge(left, right);
      tokens.push_back(left + right);
    }
    const auto t = b.build();
    for (const std::string& token : tokens) {
      const auto words = t->trace_merges(std::array{Segment{token, false}});
      ASSERT_TRUE(words.ok());
      ASSERT_EQ(words->size(), 1u);
      const auto ids = t->encode_ids(token, false, false);
      ASSERT_EQ(*ids, words->front().ids) << token << " of vocabulary " << i;
      ++(ids->size() == 1 ? whole : others);
    }
  }
  EXPECT_GT(whole, 2000u);
  EXPECT_GT(others, 200u);
}

TEST(Bpe, LongWordsEqualShortOnesAndTakeNearLinearWork) {
  VocabBuilder b = hello();
  b.merge("ll", "ll");
  b.merge("llll", "llll");
  const Metadata m = b.metadata();
  auto vocabulary = std::make_shared<const Vocabulary>(*Vocabulary::read(m, Spelling::kByteLevel));
  const Bpe bpe(vocabulary, *MergeTable::read(m, *vocabulary), false);
  size_t bad = 0;
  uint64_t small = 0, large = 0;
  for (const size_t n : {10'000u, 1'000'000u}) {
    Bpe::Scratch scratch;
    const auto parts = bpe.encode(std::string(n, 'l'), false, scratch, nullptr, bad);
    ASSERT_TRUE(parts.ok());
    EXPECT_EQ((*parts)->size(), n / 8);
    (n == 10'000 ? small : large) = scratch.operations;
  }
  EXPECT_LT(large, small * 110);  // a hundred times the text, about a hundred times the work
  // Both algorithms on the same word: cut at 48 bytes, the longer one goes through the queue.
  for (const size_t n : {47u, 48u, 49u, 50u}) {
    std::string word;
    for (size_t i = 0; i < n; ++i) word += "hellolla"[i * 7 % 8];
    Bpe::Scratch scratch;
    std::vector<MadeMerge> made;
    const auto parts = bpe.encode(word, false, scratch, &made, bad);
    std::string back;
    for (const Part& part : **parts) back += vocabulary->bytes(part.id);
    EXPECT_EQ(back, word);
    for (size_t i = 1; i < made.size(); ++i) {
      if (made[i].rank < made[i - 1].rank) {
        // A lower rank later is only possible where the earlier merge made its part.
        EXPECT_TRUE(made[i].begin <= made[i - 1].begin && made[i].end >= made[i - 1].end);
      }
    }
  }
}

TEST(Tokenizer, AMillionCharactersWithoutASpace) {
  const auto t = hello().build();
  std::string text;
  while (text.size() < 1'000'000) text += "hellollo";
  const auto ids = t->encode_ids(text, true, false);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(t->decode(*ids, true), text);
}

TEST(Tokenizer, InvalidUtf8ComesBack) {
  const auto t = hello().build();
  const std::string text("he\xFF\xC0\xC1llo \x80\xE2\x82 \xED\xA0\x80 \0 \xF4\x90\x80\x80", 24);
  EXPECT_EQ(t->decode(*t->encode_ids(text, true, false), false), text);
  EXPECT_EQ(t->piece(0xE2), "\xEF\xBF\xBD");
}

TEST(Tokenizer, MissingByteIsAnErrorWithItsPlaceOrIsDropped) {
  VocabBuilder b = hello();
  b.tokens[0x04] = "unreachable";
  b.types[0x04] = 5;
  const auto t = b.build();
  const Segment segment{"hel\x04lo", false};
  const auto refused = t->encode(std::span(&segment, 1), {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("0x04"));
  EXPECT_THAT(refused.error().message, HasSubstr("byte 3"));
  const auto dropped = t->encode(std::span(&segment, 1), {.drop_unencodable = true});
  ASSERT_TRUE(dropped.ok());
  std::string text;
  for (const EncodedToken& token : *dropped) text += t->token_bytes(token.id, true);
  EXPECT_EQ(text, "hello");
}

TEST(Special, OnlyTrustedTextMakesControlTokens) {
  VocabBuilder b = hello();
  const int32_t start = b.control("<|im_start|>");
  const int32_t end = b.control("<|im_end|>");
  const auto t = b.build();
  EXPECT_THAT(*t->encode_ids("<|im_start|>a<|im_end|>", true, false), ElementsAre(start, 'a', end));
  const auto literal = *t->encode_ids("<|im_start|>a<|im_end|>", false, false);
  EXPECT_EQ(literal.size(), 23u);
  EXPECT_EQ(t->decode(literal, false), "<|im_start|>a<|im_end|>");
  // A spelling that is half trusted is no token; an empty literal piece between two trusted ones
  // changes nothing.
  const Segment half[] = {{"<|im_", true}, {"end|>", false}};
  EXPECT_EQ(t->encode(half, {})->size(), 10u);
  const Segment joined[] = {{"<|im_", true}, {"", false}, {"end|>", true}};
  ASSERT_EQ(t->encode(joined, {})->size(), 1u);
  EXPECT_EQ((*t->encode(joined, {}))[0].id, end);
  EXPECT_EQ((*t->encode(joined, {}))[0].end, 10u);
}

TEST(Special, UserDefinedMatchEverywhereLongestFirst) {
  VocabBuilder b = hello();
  const int32_t think = b.user_defined("<think>");
  const int32_t longer = b.user_defined("<think>!");
  const int32_t spaces = b.user_defined("   ");
  const auto t = b.build();
  EXPECT_THAT(*t->encode_ids("a<think>b<think>!c    d", false, false),
              ElementsAre('a', think, 'b', longer, 'c', spaces, ' ', 'd'));
  const Segment across[] = {{"<thi", true}, {"nk>", false}};
  EXPECT_EQ((*t->encode(across, {}))[0].id, think);
  EXPECT_EQ(t->token_bytes(think, false), "<think>");
  EXPECT_EQ(t->find_special("<think>"), think);
  EXPECT_EQ(t->find_special("hello"), -1);
  EXPECT_EQ(t->find_special("<thin"), -1);
}

TEST(Special, AWordMayCrossASegmentBorder) {
  const auto t = hello().build();
  const Segment segments[] = {{"x he", true}, {"llo", false}, {" a", true}};
  const auto tokens = *t->encode(segments, {});
  std::vector<int32_t> ids;
  for (const EncodedToken& token : tokens) ids.push_back(token.id);
  EXPECT_EQ(ids, *t->encode_ids("x hello a", true, false));
}

TEST(Special, TextNeverBecomesAControlTokenByMerging) {
  VocabBuilder b = VocabBuilder::bytes();
  b.merge("h", "i");
  b.types.back() = 3;  // a control token spelled like a word
  for (const char* pre : {"gpt-2", "llama-bpe"}) {
    b.pre = pre;
    const auto t = b.build();
    ASSERT_TRUE(t);
    EXPECT_THAT(*t->encode_ids("hi", false, false), ElementsAre('h', 'i'));
    EXPECT_THAT(*t->encode_ids("hi", true, false), ElementsAre(256));
  }
}

TEST(Special, BosAndEosAsTheFileSays) {
  VocabBuilder b = hello();
  const int32_t bos = b.control("<s>");
  const int32_t eos = b.control("</s>");
  const int32_t end = b.control("<|im_end|>");
  const int32_t word = b.token(spell("<|eot_id|>"));  // an ordinary token: ends nothing
  b.extra = {{"tokenizer.ggml.bos_token_id", uint64_t(bos)},
             {"tokenizer.ggml.eos_token_id", uint64_t(end)},
             {"tokenizer.ggml.add_bos_token", true},
             {"tokenizer.ggml.add_eos_token", true}};
  const auto t = b.build();
  EXPECT_THAT(*t->encode_ids("a", false, true), ElementsAre(bos, 'a', end));
  EXPECT_THAT(*t->encode_ids("", false, true), ElementsAre(bos, end));
  EXPECT_THAT(*t->encode_ids("a", false, false), ElementsAre('a'));
  EXPECT_THAT(t->end_ids(), ElementsAre(eos, end));
  EXPECT_EQ(t->token_type(word), TokenType::kNormal);
  EXPECT_EQ(t->special_ids().bos, bos);
  EXPECT_EQ(t->special_ids().eot, -1);
}

TEST(Special, LlamaAddsBosUnlessTheFileSaysNo) {
  VocabBuilder b = hello();
  b.pre = "llama-bpe";
  const int32_t bos = b.control("<|begin_of_text|>");
  b.extra = {{"tokenizer.ggml.bos_token_id", uint64_t(bos)}};
  EXPECT_THAT(*b.build()->encode_ids("a", false, true), ElementsAre(bos, 'a'));
  b.extra.push_back({"tokenizer.ggml.add_bos_token", false});
  EXPECT_THAT(*b.build()->encode_ids("a", false, true), ElementsAre('a'));
}

TEST(Hostile, VocabulariesThatDoNotFit) {
  VocabBuilder b = hello();
  b.merges.push_back("zz y");
  EXPECT_THAT(b.error().message, HasSubstr("merges[6]"));
  EXPECT_EQ(b.error().code, ErrorCode::kInvalidFile);
  b = hello();
  b.merges.push_back("a b");  // both known, "ab" is not
  EXPECT_THAT(b.error().message, HasSubstr("merged token"));
  b = hello();
  for (const char* merge : {"", " ", "a", " a", "a ", "a\xFF b", "\xE2\x82\xAC b", "a b c"}) {
    b.merges.back() = merge;
    EXPECT_EQ(b.error().field, "tokenizer.ggml.merges") << merge;
  }
  b = hello();
  b.types.pop_back();
  EXPECT_EQ(b.error().field, "tokenizer.ggml.token_type");
  b = hello();
  b.types[3] = 7;
  EXPECT_THAT(b.error().message, HasSubstr("token_type[3] is 7"));
  b = VocabBuilder();
  EXPECT_EQ(b.error().field, "tokenizer.ggml.tokens");
  b = hello();
  b.extra = {{"tokenizer.ggml.eos_token_id", uint64_t{262}}};
  EXPECT_THAT(b.error().message, HasSubstr("tokenizer.ggml.eos_token_id"));
  b = hello();
  b.extra = {{"tokenizer.ggml.add_bos_token", true}};
  EXPECT_EQ(b.error().field, "tokenizer.ggml.bos_token_id");
  b = hello();
  b.control(std::string(2000, 'x'));
  EXPECT_EQ(b.error().code, ErrorCode::kUnsupported);
}

TEST(Hostile, OddVocabulariesThatCanBeUsed) {
  VocabBuilder b = hello();
  const int32_t again = b.token("h");  // the last of two equal tokens is the one
  b.control("");
  b.control("<x>");
  const int32_t x = b.control("<x>");
  b.token("");
  b.token("\xFF\xFE");  // not of the alphabet: never made from text
  const auto t = b.build();
  EXPECT_THAT(*t->encode_ids("h<x>", true, false), ElementsAre(again, x));
  EXPECT_EQ(t->token_bytes(x + 2, false), "\xFF\xFE");

  VocabBuilder lone;
  lone.control("<x>");
  const auto only = lone.build();
  EXPECT_THAT(*only->encode_ids("<x>", true, false), ElementsAre(0));
  EXPECT_FALSE(only->encode_ids("a", true, false).ok());
}

TEST(Hostile, ModelNamesThatAreNotKnown) {
  Metadata m;
  EXPECT_EQ(Tokenizer::create(m).error().code, ErrorCode::kNotFound);
  m.insert("tokenizer.ggml.model", std::string("rwkv"));
  const auto t = Tokenizer::create(m);
  ASSERT_FALSE(t.ok());
  EXPECT_EQ(t.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(t.error().message, HasSubstr("\"rwkv\""));
  EXPECT_THAT(t.error().message, HasSubstr("gpt2"));
}

TEST(Nfc, ComposesAndKeepsTheWayBack) {
  const std::string text = "xe\xCC\x81y";  // e + U+0301
  const NfcText nfc(UnicodeTable::get(), text);
  EXPECT_EQ(nfc.text(), "x\xC3\xA9y");
  EXPECT_EQ(nfc.input_begin(0), 0u);
  EXPECT_EQ(nfc.input_end(1), 1u);
  EXPECT_EQ(nfc.input_begin(1), 1u);
  EXPECT_EQ(nfc.input_begin(2), 1u);  // inside: the whole of it
  EXPECT_EQ(nfc.input_end(2), 4u);
  EXPECT_EQ(nfc.input_end(3), 4u);
  EXPECT_EQ(nfc.input_begin(3), 4u);
  EXPECT_EQ(nfc.input_end(4), 5u);
  EXPECT_EQ(NfcText(UnicodeTable::get(), "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB").text(),
            "\xED\x95\x9C");
  EXPECT_EQ(NfcText(UnicodeTable::get(), "q\xCC\x87\xCC\xA3").text(),
            "q\xCC\xA3\xCC\x87");  // marks in order
  EXPECT_EQ(NfcText(UnicodeTable::get(), "\xE2\x84\xAA").text(), "K");
  const std::string stray = "e\xCC\x81\xFF";  // bytes, not characters: nothing changes
  EXPECT_EQ(NfcText(UnicodeTable::get(), stray).text(), stray);
}

TEST(Nfc, AMillionMarksTakeNoQuadraticTime) {
  std::string text = "a";
  for (int i = 0; i < 250'000; ++i) text += i % 2 ? "\xCC\xA3" : "\xCC\x81";
  const NfcText nfc(UnicodeTable::get(), text);
  EXPECT_EQ(nfc.text().substr(0, 5), "\xE1\xBA\xA1\xCC\xA3");
}

TEST(Nfc, OnlyWhereTheModelSaysSo) {
  VocabBuilder b = hello();
  const std::string text = "e\xCC\x81 hello";
  EXPECT_EQ(b.build()->encode_ids(text, false, false)->size(), 5u);
  b.pre = "qwen2";
  const auto t = b.build();
  const Segment segment{text, false};
  const auto tokens = *t->encode(std::span(&segment, 1), {});
  ASSERT_EQ(tokens.size(), 4u);
  EXPECT_EQ(tokens[0].id, 0xC3);
  EXPECT_EQ(tokens[1].begin, 0u);
  EXPECT_EQ(tokens[1].end, 3u);
  EXPECT_EQ(tokens[2].begin, 3u);
  EXPECT_EQ(tokens[3].end, 9u);
}

TEST(Tokenizer, SharedByThreads) {
  const auto t = hello().build();
  const auto expected = *t->encode_ids("hello lol a hello", false, false);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 200; ++k) {
        wrong[i] += *t->encode_ids("hello lol a hello", false, false) != expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace cutaway::text
