// Pages that sequences share, and the tree that holds the beginnings of texts. What "computing" a
// token leaves in a page is the token itself: whoever reads another one would see it.
#include "kv/prefix_tree.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>

namespace cutaway::kv {
namespace {

using Tokens = std::vector<int32_t>;
constexpr int64_t kPage = kernels::kTilePositions;
constexpr Geometry kGeometry{2, 1, 8, 8, kernels::KvType::kF32};

struct Text {
  explicit Text(PagePool& pool) : kv(pool) {}
  Sequence kv;
  Tokens tokens;

  Status append(std::span<const int32_t> more) {
    const int64_t end = kv.length() + std::ssize(more);
    if (Status status = kv.reserve(end); !status.ok()) return status;
    for (const int32_t token : more) {
      const auto at = static_cast<int64_t>(tokens.size());
      for (int64_t layer = 0; layer < kGeometry.n_layers; ++layer) {
        std::memcpy(kv.key_data(layer, 0, at / kPage) + at % kPage * 4, &token, 4);
      }
      tokens.push_back(token);
    }
    kv.set_length(end);
    return {};
  }
  // The pages hold what was written for these tokens.
  void check() {
    ASSERT_EQ(kv.length(), std::ssize(tokens));
    for (int64_t at = 0; at < kv.length(); ++at) {
      for (int64_t layer = 0; layer < kGeometry.n_layers; ++layer) {
        int32_t found;
        std::memcpy(&found, kv.key_data(layer, 0, at / kPage) + at % kPage * 4, 4);
        ASSERT_EQ(found, tokens[static_cast<size_t>(at)]) << "position " << at;
      }
    }
  }
};

Tokens numbers(int32_t first, int64_t n) {
  Tokens out(static_cast<size_t>(n));
  for (int32_t& token : out) token = first++;
  return out;
}

TEST(SharedPages, WhoWritesHasAPageOfItsOwn) {
  PagePool pool(kGeometry, 8);
  auto a = std::make_unique<Text>(pool);
  ASSERT_TRUE(a->append(numbers(0, 100)).ok());
  Text b(pool), c(pool);
  b.kv.begin_with(a->kv.pages(), 100);
  b.tokens = a->tokens;
  EXPECT_EQ(pool.pages_in_use(), 2);
  c.kv.begin_with(a->kv.pages().first(1), 60);  // in the midst of a whole page
  c.tokens = numbers(0, 60);
  EXPECT_EQ(pool.pages_in_use(), 2);
  ASSERT_TRUE(b.append(numbers(1000, 5)).ok());
  ASSERT_TRUE(c.append(numbers(2000, 10)).ok());
  EXPECT_EQ(pool.pages_in_use(), 5);              // a copy each, and a new page of c's
  ASSERT_TRUE(a->append(numbers(3000, 1)).ok());  // the others have gone: in place
  EXPECT_EQ(pool.pages_in_use(), 5);
  a->check();
  b.check();
  c.check();
  a.reset();
  b.check();
  c.check();
  EXPECT_EQ(pool.pages_in_use(), 4);
  b.kv.truncate(64);  // whole pages only: nothing is copied any more
  ASSERT_TRUE(b.kv.reserve(65).ok());
  EXPECT_EQ(pool.pages_in_use(), 4);
}

TEST(SharedPages, WithoutAPageNothingHasChanged) {
  PagePool pool(kGeometry, 2);
  Text a(pool), b(pool);
  ASSERT_TRUE(a.append(numbers(0, 70)).ok());
  b.kv.begin_with(a.kv.pages(), 70);
  b.tokens = a.tokens;
  const Status status = b.append(numbers(0, 1));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(b.kv.length(), 70);
  EXPECT_EQ(pool.pages_in_use(), 2);
  b.check();
  a.kv.truncate(0);
  EXPECT_TRUE(b.append(numbers(5, 1)).ok());  // alone: in place
  b.check();
}

TEST(PrefixTree, ATextBeginsWithWhatIsHeld) {
  PagePool pool(kGeometry, 64);
  PrefixTree tree(pool);
  Text first(pool);
  ASSERT_TRUE(first.append(numbers(0, 150)).ok());
  tree.insert(first.tokens, first.kv);
  EXPECT_EQ(tree.page_count(), 3);
  EXPECT_EQ(tree.evictable(), 0);  // all are in use

  Tokens other = numbers(0, 100);
  other[90] = -1;
  Text second(pool);
  EXPECT_EQ(tree.begin(other, second.kv), 90);
  second.tokens = numbers(0, 90);
  ASSERT_TRUE(second.append(std::span(other).subspan(90)).ok());
  second.check();
  first.check();
  tree.insert(second.tokens, second.kv);
  EXPECT_EQ(tree.page_count(), 4);  // the second page twice

  Text third(pool);
  EXPECT_EQ(tree.begin(Tokens{5, 6}, third.kv), 0);
  EXPECT_EQ(tree.begin(numbers(0, 1000), third.kv), 150);
}

TEST(PrefixTree, APageThatHoldsMoreTakesThePlaceOfOneThatHoldsLess) {
  PagePool pool(kGeometry, 64);
  PrefixTree tree(pool);
  for (const int64_t n : {10, 40, 30, 64, 100, 90}) {
    Text text(pool);
    ASSERT_TRUE(text.append(numbers(0, n)).ok());
    tree.insert(text.tokens, text.kv);
  }
  EXPECT_EQ(tree.page_count(), 2);
  EXPECT_EQ(pool.pages_in_use(), 2);
  Text all(pool);
  EXPECT_EQ(tree.begin(numbers(0, 128), all.kv), 100);
}

TEST(PrefixTree, TheOldestGoFirstAndNothingThatIsUsed) {
  PagePool pool(kGeometry, 64);
  PrefixTree tree(pool);
  for (const int32_t start : {0, 10'000, 20'000}) {
    Text text(pool);
    ASSERT_TRUE(text.append(numbers(start, 130)).ok());
    tree.insert(text.tokens, text.kv);
  }
  EXPECT_EQ(tree.evictable(), 9);
  Text user(pool);
  EXPECT_EQ(tree.begin(numbers(0, 70), user.kv), 70);  // asked for last, and in use
  EXPECT_EQ(tree.evictable(), 7);
  EXPECT_EQ(tree.evict(2), 2);
  Text probe(pool);
  // The first text's last page, which nobody asked for again, and then one of the second text.
  EXPECT_EQ(tree.begin(numbers(10'000, 130), probe.kv), 128);
  probe.kv.truncate(0);
  EXPECT_EQ(tree.evict(100), 5);
  EXPECT_EQ(tree.page_count(), 2);
  EXPECT_EQ(pool.pages_in_use(), 2);
  user.kv.truncate(0);
  EXPECT_EQ(tree.evict(100), 2);
  EXPECT_EQ(pool.pages_in_use(), 0);
}

// Sequences grow, fork, end and begin again over few tokens, so that they meet everywhere; pages
// are taken from the tree when the pool has no more.
TEST(PrefixTree, RandomTextsKeepTheirTokens) {
  std::mt19937 random(5);
  const auto below = [&](size_t n) { return random() % n; };
  PagePool pool(kGeometry, 40);
  size_t shared = 0, forks = 0, refused = 0, evicted = 0;
  {
    PrefixTree tree(pool);
    std::vector<std::unique_ptr<Text>> texts;
    // A few beginnings that many share.
    std::vector<Tokens> beginnings(6);
    for (Tokens& tokens : beginnings) {
      const size_t n = 1 + below(150);
      const Tokens& before = beginnings[below(beginnings.size())];
      tokens.assign(before.begin(),
                    before.begin() + static_cast<int64_t>(below(before.size() + 1)));
      while (tokens.size() < n) tokens.push_back(static_cast<int32_t>(below(3)));
    }
    for (int round = 0; round < 20'000; ++round) {
      const size_t what = below(10);
      if (what < 3 && texts.size() < 6) {
        Tokens tokens = beginnings[below(beginnings.size())];
        while (below(4) != 0) tokens.push_back(static_cast<int32_t>(below(3)));
        auto text = std::make_unique<Text>(pool);
        const int64_t n = tree.begin(tokens, text->kv);
        text->tokens.assign(tokens.begin(), tokens.begin() + n);
        shared += static_cast<size_t>(n);
        text->check();
        if (text->append(std::span(tokens).subspan(static_cast<size_t>(n))).ok()) {
          texts.push_back(std::move(text));
        } else {
          ++refused;
          evicted += static_cast<size_t>(tree.evict(1 + static_cast<int64_t>(below(8))));
        }
      } else if (!texts.empty() && what < 6) {
        Text& text = *texts[below(texts.size())];
        Tokens more(below(40));
        for (int32_t& token : more) token = static_cast<int32_t>(below(3));
        if (!text.append(more).ok()) {
          ++refused;
          evicted += static_cast<size_t>(tree.evict(1 + static_cast<int64_t>(below(8))));
        }
        text.check();
      } else if (!texts.empty() && what == 6 && texts.size() < 6) {
        const Text& from = *texts[below(texts.size())];
        const size_t n = below(from.tokens.size() + 1);
        auto fork = std::make_unique<Text>(pool);
        const auto pages = from.kv.pages().first(
            static_cast<size_t>(Geometry::pages_for(static_cast<int64_t>(n))));
        fork->kv.begin_with(pages, static_cast<int64_t>(n));
        fork->tokens.assign(from.tokens.begin(), from.tokens.begin() + static_cast<int64_t>(n));
        texts.push_back(std::move(fork));
        ++forks;
      } else if (!texts.empty()) {
        const size_t i = below(texts.size());
        texts[i]->check();
        if (what == 7) {
          const size_t n = below(texts[i]->tokens.size() + 1);
          texts[i]->kv.truncate(static_cast<int64_t>(n));
          texts[i]->tokens.resize(n);
          continue;
        }
        tree.insert(texts[i]->tokens, texts[i]->kv);
        if (what == 8) texts.erase(texts.begin() + static_cast<int64_t>(i));
      }
      for (const auto& text : texts) ASSERT_NO_FATAL_FAILURE(text->check()) << "round " << round;
    }
    EXPECT_LE(tree.evictable(), tree.page_count());
    const int64_t could = tree.evictable();
    EXPECT_EQ(tree.evict(1000), could);
    texts.clear();
    EXPECT_EQ(tree.evict(1000), pool.pages_in_use());
    EXPECT_EQ(tree.page_count(), 0);
  }
  EXPECT_EQ(pool.pages_in_use(), 0);
  EXPECT_GT(shared, 10'000u);
  EXPECT_GT(forks, 100u);
  EXPECT_GT(refused, 10u);
  std::printf("%zu positions shared, %zu forks, %zu refusals, %zu pages evicted\n", shared, forks,
              refused, evicted);
}

}  // namespace
}  // namespace cutaway::kv
