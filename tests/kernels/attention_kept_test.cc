// What attention keeps beside its result: scores, weights and moments of a tile, and the largest
// weights of a row.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/kernels/kernels_testing.h"
#include "tests/kernels/kv_testing.h"

namespace cutaway::kernels {
namespace {

using testing::Guarded;

constexpr int64_t kD = 40, kRows = 7;
constexpr float kUnseen = -std::numeric_limits<float>::infinity();

struct Outputs {
  std::vector<float> max = std::vector<float>(kRows), sum = max, moment = max;
  std::vector<float> out = std::vector<float>(kRows * kD);
};

class KeptTile {
 public:
  KeptTile(const KernelTable& table, KvType type, std::mt19937& random)
      : type_(type), k_(kv_tile_bytes(type, kD), 4), v_(kv_tile_bytes(type, kD), 4) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> row(kD);
    for (int64_t p = 0; p < kTilePositions; ++p) {
      for (float& x : row) x = normal(random);
      table.store_key(type, row.data(), kD, p, k_.data());
      table.store_value(type, row.data(), kD, p, v_.data());
    }
    std::uniform_int_distribution<int32_t> edge(0, kTilePositions);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < kD; ++i) q_.push_back(normal(random));
      const int32_t a = edge(random), b = r == 2 ? a : edge(random);  // row 2 sees nothing
      begin.push_back(std::min(a, b));
      end.push_back(std::max(a, b));
    }
    for (int64_t r = 0; r < kRows; ++r) queries_.push_back(q_.data() + r * kD);
  }

  AttentionTileArgs args(Outputs& to, float cap) {
    AttentionTileArgs args;
    args.tile = {type_, k_.data(), v_.data()};
    args.d_k = args.d_v = kD;
    args.n = kRows;
    args.q = queries_.data();
    args.scale = 0.37f;
    args.soft_cap = cap;
    args.begin = begin.data();
    args.end = end.data();
    args.max = to.max.data();
    args.sum = to.sum.data();
    args.out = to.out.data();
    return args;
  }
  std::vector<int32_t> begin, end;

 private:
  KvType type_;
  Guarded<uint8_t> k_, v_;
  std::vector<float> q_;
  std::vector<const float*> queries_;
};

// Keeping changes no bit of the result; scores are those whose weights are kept, and the moment is
// theirs: Σ w·(s − max), 64 rounded products (γ_66 of the sum of magnitudes).
void check_kept(const KernelTable& table, KvType type, float cap, int64_t n, std::mt19937& random) {
  KeptTile tile(table, type, random);
  Outputs plain, kept;
  table.attention_tile(tile.args(plain, cap));
  AttentionTileArgs args = tile.args(kept, cap);
  std::vector<Guarded<float>> scores, weights;
  std::vector<float*> score_rows, weight_rows;
  for (int64_t r = 0; r < kRows; ++r) {
    scores.emplace_back(n, 4);
    weights.emplace_back(n, 4);
  }
  for (int64_t r = 0; r < kRows; ++r) {
    score_rows.push_back(r == 3 ? nullptr : scores[static_cast<size_t>(r)].data());
    weight_rows.push_back(r == 4 ? nullptr : weights[static_cast<size_t>(r)].data());
  }
  args.scores = score_rows.data();
  args.weights = weight_rows.data();
  args.scores_n = args.weights_n = n;
  args.moment = kept.moment.data();
  table.attention_tile(args);
  const std::string text =
      std::string(table.name) + ' ' + kv_type_name(type) + " n " + std::to_string(n);
  for (int64_t r = 0; r < kRows; ++r) {
    const auto row = static_cast<size_t>(r);
    ASSERT_TRUE(testing::same_bits(plain.max[row], kept.max[row])) << text;
    ASSERT_TRUE(testing::same_bits(plain.sum[row], kept.sum[row])) << text;
    ASSERT_TRUE(scores[row].intact() && weights[row].intact()) << text;
    double moment = 0, magnitude = 0;
    for (int64_t p = 0; p < n && r != 3 && r != 4; ++p) {
      const float score = scores[row][p], weight = weights[row][p];
      if (p < tile.begin[row] || p >= tile.end[row]) {
        ASSERT_EQ(score, kUnseen) << text << " row " << r << " key " << p;
        ASSERT_EQ(weight, 0.0f) << text << " row " << r << " key " << p;
        continue;
      }
      const double shifted = static_cast<double>(score) - static_cast<double>(kept.max[row]);
      ASSERT_NEAR(weight, std::exp(shifted), 4e-7 * (1 + std::fabs(shifted))) << text;
      moment += static_cast<double>(weight) * shifted;
      magnitude += std::fabs(static_cast<double>(weight) * shifted);
    }
    if (n == kTilePositions && r != 3 && r != 4) {
      ASSERT_NEAR(kept.moment[row], moment, testing::gamma_f32(66) * magnitude) << text;
    }
  }
  for (size_t i = 0; i < plain.out.size(); ++i) {
    ASSERT_TRUE(testing::same_bits(plain.out[i], kept.out[i])) << text;
  }
}

TEST(AttentionKept, ScoresWeightsAndMomentsAreThoseOfTheResult) {
  std::mt19937 random(11);
  for (const KernelTable* table : testing::runnable_tables()) {
    for (const KvType type : testing::kKvTypes) {
      for (const float cap : {0.0f, 5.0f}) {
        for (const int64_t n : {1, 7, 8, 17, 40, 63, 64}) {
          ASSERT_NO_FATAL_FAILURE(check_kept(*table, type, cap, n, random));
        }
      }
    }
  }
}

// Against sorting everything: exact, ties by index, whatever the order of the values.
TEST(AttentionTop, IsTheHeadOfTheSortedRow) {
  std::mt19937 random(12);
  for (const KernelTable* table : testing::runnable_tables()) {
    for (const int64_t tiles : {1, 2, 5, 9}) {
      for (const std::string kind : {"random", "rising", "equal", "few", "none", "large", "odd"}) {
        const int64_t n = tiles * kTilePositions;
        std::vector<float> weights(static_cast<size_t>(n)), factor(static_cast<size_t>(tiles));
        std::uniform_real_distribution<float> uniform(0, 1);
        for (float& f : factor) f = kind == "equal" ? 0.5f : 0.25f + uniform(random);
        for (int64_t i = 0; i < n; ++i) {
          float& w = weights[static_cast<size_t>(i)];
          if (kind == "random") w = std::pow(uniform(random), 8.0f);
          if (kind == "rising") w = static_cast<float>(i) / static_cast<float>(n);
          if (kind == "equal") w = 0.125f;
          if (kind == "few") w = i % 61 == 7 ? 0.5f : 0.0f;
          // What changed patterns may hold: weights above 1, below 0, infinite, no numbers.
          if (kind == "large" || kind == "odd") w = 7 * std::pow(uniform(random), 4.0f);
          if (kind == "odd" && i % 3 == 1) w = i % 2 == 0 ? std::nanf("") : -w;
          if (kind == "odd" && i % 97 == 5) w = std::numeric_limits<float>::infinity();
        }
        for (const int64_t k : {1, 2, 5, 8, 16}) {
          TopKeys top;
          table->attention_top(weights.data(), factor.data(), tiles, k, top);
          const auto at = [&](int64_t i) {  // what does not count is 0
            const float w = weights[static_cast<size_t>(i)] * factor[static_cast<size_t>(i / 64)];
            return w > 0 ? w : 0.0f;
          };
          std::vector<int64_t> order(static_cast<size_t>(n));
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(),
                           [&](int64_t a, int64_t b) { return at(a) > at(b); });
          for (int64_t j = 0; j < kMaxTopKeys; ++j) {
            const int64_t expected = order[static_cast<size_t>(j)];
            const bool there = j < k && at(expected) > 0;
            const std::string text = std::string(table->name) + ' ' + kind + ' ' +
                                     std::to_string(tiles) + " tiles, " + std::to_string(j) +
                                     " of " + std::to_string(k);
            ASSERT_EQ(top.index[j], there ? expected : -1) << text;
            ASSERT_EQ(top.value[j], there ? at(expected) : 0.0f) << text;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace cutaway::kernels
