#include "text/tokenizer/detokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/text_testing.h"

namespace cutaway::text {
namespace {

using testing_vocab::spell;
using testing_vocab::VocabBuilder;

TEST(StreamDetokenizer, NeverHalfACharacter) {
  StreamDetokenizer d(VocabBuilder::bytes().build(), false);
  const std::string smile = "\xF0\x9F\x98\x80";
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(d.push(static_cast<uint8_t>(smile[i])), "");
    EXPECT_EQ(d.held(), i + 1);
  }
  EXPECT_EQ(d.push(static_cast<uint8_t>(smile[3])), smile);
  EXPECT_EQ(d.held(), 0u);
}

TEST(StreamDetokenizer, BytesThatFormNoCharacterPassThrough) {
  StreamDetokenizer d(VocabBuilder::bytes().build(), false);
  EXPECT_EQ(d.push(0xFF), "\xFF");
  EXPECT_EQ(d.push(0xE2), "");
  EXPECT_EQ(d.push('a'),
            "\xE2"
            "a");
  EXPECT_EQ(d.push(0xED), "");
  EXPECT_EQ(d.push(0xA0), "\xED\xA0");  // a surrogate can never be completed
  EXPECT_EQ(d.push(0xF0), "");
  EXPECT_EQ(d.finish(), "\xF0");
  EXPECT_EQ(d.finish(), "");
}

TEST(StreamDetokenizer, AModelMayWriteARealReplacementCharacter) {
  VocabBuilder b = VocabBuilder::bytes();
  const int32_t fffd = b.token(spell("\xEF\xBF\xBD"));
  StreamDetokenizer d(b.build(), false);
  EXPECT_EQ(d.push(fffd), "\xEF\xBF\xBD");
}

TEST(StreamDetokenizer, ControlTokensBySpellingOrNotAtAll) {
  VocabBuilder b = VocabBuilder::bytes();
  const int32_t end = b.control("<|im_end|>");
  const auto t = b.build();
  EXPECT_EQ(StreamDetokenizer(t, true).push(end), "<|im_end|>");
  EXPECT_EQ(StreamDetokenizer(t, false).push(end), "");
}

struct Outcome {
  std::string text;
  bool stopped;
  std::string stop;
};

Outcome feed(std::vector<std::string> stops, const std::vector<std::string>& pieces) {
  StopMatcher m = *StopMatcher::create(std::move(stops));
  Outcome out{"", false, ""};
  for (const std::string& piece : pieces) {
    const StopMatcher::Step step = m.push(piece);
    out.text += step.text;
    if (step.stopped) return {out.text, true, step.stop};
  }
  out.text += m.finish();
  out.stopped = m.stopped();
  return out;
}

TEST(StopMatcher, AcrossPieces) {
  const Outcome o = feed({"STOP"}, {"aS", "TO", "Pb"});
  EXPECT_TRUE(o.stopped);
  EXPECT_EQ(o.text, "a");
  EXPECT_EQ(o.stop, "STOP");
  EXPECT_EQ(feed({"STOP"}, {"aS", "TO", "X"}).text, "aSTOX");
  EXPECT_EQ(feed({"STOP"}, {"aSTO"}).text, "aSTO");
}

TEST(StopMatcher, NothingOfAStopLeaks) {
  StopMatcher m = *StopMatcher::create({"\n\nUser:"});
  EXPECT_EQ(m.push("hi\n").text, "hi");
  EXPECT_EQ(m.push("\nUse").text, "");
  EXPECT_EQ(m.push("d").text, "\n\nUsed");
}

TEST(StopMatcher, EarliestThenLongest) {
  EXPECT_EQ(feed({"b", "bc", "c"}, {"abc"}).stop, "bc");
  const Outcome earlier = feed({"bc", "abcd"}, {"xabc", "d"});
  EXPECT_EQ(earlier.stop, "abcd");
  EXPECT_EQ(earlier.text, "x");
  const Outcome later = feed({"bc", "abcd"}, {"xabc", "e"});
  EXPECT_EQ(later.stop, "bc");
  EXPECT_EQ(later.text, "xa");
  const Outcome at_end = feed({"bc", "abcd"}, {"xabc"});
  EXPECT_TRUE(at_end.stopped);
  EXPECT_EQ(at_end.text, "xa");
}

TEST(StopMatcher, EveryCutGivesTheSameText) {
  const std::string text = "one aab aaab two";
  for (size_t n = 1; n <= text.size(); ++n) {
    std::vector<std::string> pieces;
    for (size_t i = 0; i < text.size(); i += n) pieces.push_back(text.substr(i, n));
    EXPECT_EQ(feed({"aaab"}, pieces).text, "one aab ");
  }
}

TEST(StopMatcher, AfterAStopNothingComes) {
  StopMatcher m = *StopMatcher::create({"."});
  EXPECT_TRUE(m.push("a.b").stopped);
  EXPECT_EQ(m.push("c").text, "");
  EXPECT_TRUE(m.push("c").stopped);
  EXPECT_EQ(m.finish(), "");
}

TEST(StopMatcher, AnEmptyStopStringIsRefused) {
  const auto m = StopMatcher::create({"a", ""});
  ASSERT_FALSE(m.ok());
  EXPECT_EQ(m.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(m.error().field, "stop");
  EXPECT_EQ(feed({}, {"a", "b"}).text, "ab");
}

}  // namespace
}  // namespace cutaway::text
