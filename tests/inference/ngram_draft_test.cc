#include "inference/ngram_draft.h"

#include <gtest/gtest.h>

#include <random>

namespace cutaway::inference {
namespace {

using Tokens = std::vector<int32_t>;

Tokens guess(const Tokens& text, int64_t most) {
  NgramDraft draft;
  draft.add(text);
  return draft.guess(most);
}

TEST(NgramDraft, WhatFollowedTheLongestMatch) {
  EXPECT_EQ(guess({}, 4), Tokens{});
  EXPECT_EQ(guess({1, 2, 3}, 4), Tokens{});
  EXPECT_EQ(guess({7, 1, 8, 1}, 4), Tokens{});  // one token is no match
  EXPECT_EQ(guess({1, 2, 3, 4, 9, 1, 2}, 2), (Tokens{3, 4}));
  EXPECT_EQ(guess({1, 2, 3, 4, 9, 1, 2}, 9), (Tokens{3, 4, 9, 1, 2}));
  EXPECT_EQ(guess({1, 2, 5, 1, 2, 6, 1, 2}, 1), Tokens{6});           // the latest
  EXPECT_EQ(guess({0, 1, 2, 5, 9, 1, 2, 6, 0, 1, 2}, 1), Tokens{5});  // the longer
  EXPECT_EQ(guess({4, 4, 4}, 3), Tokens{4});
}

// Against looking through the whole text.
TEST(NgramDraft, AsASearchThroughTheText) {
  std::mt19937 random(9);
  int64_t found = 0;
  for (int round = 0; round < 300; ++round) {
    NgramDraft draft;
    Tokens text;
    for (int step = 0; step < 40; ++step) {
      Tokens more(random() % 4);
      for (int32_t& token : more) token = static_cast<int32_t>(random() % 4);
      draft.add(more);
      text.insert(text.end(), more.begin(), more.end());
      Tokens expected;
      for (size_t n = std::min<size_t>(4, text.size()); n >= 2 && expected.empty(); --n) {
        for (size_t end = text.size() - 1; end >= n && expected.empty(); --end) {
          if (!std::equal(text.end() - static_cast<int64_t>(n), text.end(),
                          text.begin() + static_cast<int64_t>(end - n))) {
            continue;
          }
          expected.assign(text.begin() + static_cast<int64_t>(end),
                          text.begin() + static_cast<int64_t>(std::min(end + 5, text.size())));
        }
      }
      ASSERT_EQ(draft.guess(5), expected);
      found += expected.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(found, 5000);
}

TEST(DraftPace, GrowsWhileRightAndRestsWhereItIsWrong) {
  DraftPace right(16);
  int64_t last = 0;
  for (int i = 0; i < 8; ++i) {
    last = right.next();
    right.report(last, last);
  }
  EXPECT_EQ(last, 16);
  DraftPace wrong(16);
  int64_t guessed = 0;
  for (int i = 0; i < 1000; ++i) {
    const int64_t n = wrong.next();
    guessed += n;
    wrong.report(n, 0);
  }
  EXPECT_LE(guessed, 40);                                          // of 1,000 passes
  for (int64_t n = 0; n == 0;) wrong.report(n = wrong.next(), n);  // one is right: at once again
  EXPECT_GT(wrong.next(), 0);
  DraftPace none(0);
  EXPECT_EQ(none.next(), 0);
}

}  // namespace
}  // namespace cutaway::inference
