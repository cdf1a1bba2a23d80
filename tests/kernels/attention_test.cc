// Attention over tiles, against double precision, with begin/end masks and odd head sizes.
//
// Bound. With u = 2^−24 and γ_n as in kernels_testing.h, over the keys that a row sees:
// a score is d_k products added in order, then scaled (and capped: tanh is 1-Lipschitz, and is
// within 2 ulp, its division and product within another): its error is at most
//   ε = γ_{d_k+2} · |scale| · max_p Σ_i |q_i|·|k_pi| (+ cap · 8u).
// The weight exp(s − max) then has a relative error of at most η = e^{2ε + u·D} − 1 + 4u, D the
// largest |s − max| (2ε: score and max; u·D: the subtraction; 4u: 2 ulp of exp). The weighted sum
// adds at most 64 rounded products, the sum 64 terms, so with κ = η + γ_66:
//   |out/sum − exact| ≤ 2·κ / (1 − κ) · Σ_p w_p·|v_p| / Σ_p w_p,
//   |max + ln sum − exact| ≤ ε + κ / (1 − κ) + u·|max|.
// The quantised types are held against what is stored. A product passes two more roundings for each
// block of 32 (its scale, its min) and one for the element itself where that is made first:
// γ_{d_k + 2·blocks + 3}; a weighted value at most 24 more (weight · scale, the sum of the mins by
// lanes). kQ4's d·q + m is added up as two terms, so that there |k| and |v| stand for |d·q| + |m|.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/kernels_testing.h"
#include "tests/kernels/kv_testing.h"

namespace cutaway::kernels {
namespace {

using testing::Guarded;
using testing::Side;
using testing::stored_element;
using testing::StoredElement;

struct Setup {
  KvType type;
  int64_t d_k, d_v, n;
  float soft_cap;
  std::string text(const KernelTable& table) const {
    return std::string(table.name) + ' ' + kv_type_name(type) + " d_k " + std::to_string(d_k) +
           " d_v " + std::to_string(d_v) + " n " + std::to_string(n) + " cap " +
           std::to_string(soft_cap);
  }
};

// One tile written through the kernels, n queries and their masks. Positions that no row sees hold
// NaN, or more than f16 scales reach, and must not be looked at.
class Tile {
 public:
  Tile(const Setup& setup, bool causal, std::mt19937& random)
      : setup_(setup),
        k_(kv_tile_bytes(setup.type, setup.d_k), 4),
        v_(kv_tile_bytes(setup.type, setup.d_v), 4),
        q_(setup.d_k * setup.n, 4) {
    std::uniform_int_distribution<int32_t> edge(0, kTilePositions);
    for (int64_t r = 0; r < setup.n; ++r) {
      int32_t a = edge(random), b = edge(random);
      if (causal) {  // as prefill does: three heads a position, one more key for each position
        a = 0;
        b = static_cast<int32_t>(std::min<int64_t>(kTilePositions, 14 + r / 3));
      }
      begin_.push_back(std::min(a, b));
      end_.push_back(std::max(a, b));
    }
    std::normal_distribution<float> normal(0, 1);
    for (int64_t i = 0; i < q_.size(); ++i) q_[i] = normal(random) * 2;
    for (int64_t r = 0; r < setup.n; ++r) queries_.push_back(q_.data() + r * setup.d_k);
    keys_.resize(static_cast<size_t>(setup.d_k * kTilePositions));
    values_.resize(static_cast<size_t>(setup.d_v * kTilePositions));
    for (int64_t p = 0; p < kTilePositions; ++p) {
      bool seen = false;
      for (size_t r = 0; r < begin_.size(); ++r) seen |= begin_[r] <= p && p < end_[r];
      const float unseen = p % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : 1e30f;
      float* key = keys_.data() + p * setup.d_k;
      float* value = values_.data() + p * setup.d_v;
      for (int64_t i = 0; i < setup.d_k; ++i) key[i] = seen ? normal(random) : unseen;
      for (int64_t i = 0; i < setup.d_v; ++i) value[i] = seen ? normal(random) : unseen;
    }
  }

  // Fills the tile's memory by the table's own store kernels.
  void store(const KernelTable& table) {
    for (int64_t p = 0; p < kTilePositions; ++p) {
      table.store_key(setup_.type, keys_.data() + p * setup_.d_k, setup_.d_k, p, k_.data());
      table.store_value(setup_.type, values_.data() + p * setup_.d_v, setup_.d_v, p, v_.data());
    }
    ASSERT_TRUE(k_.intact());
    ASSERT_TRUE(v_.intact());
    stored_keys_ = stored(Side::kKey, k_.data(), setup_.d_k);
    stored_values_ = stored(Side::kValue, v_.data(), setup_.d_v);
  }

  AttentionTileArgs args(int64_t first, int64_t n, float* max, float* sum, float* out) {
    AttentionTileArgs args;
    args.tile = {setup_.type, k_.data(), v_.data()};
    args.d_k = setup_.d_k;
    args.d_v = setup_.d_v;
    args.n = n;
    args.q = queries_.data() + first;
    args.scale = 0.37f;
    args.soft_cap = setup_.soft_cap;
    args.begin = begin_.data() + first;
    args.end = end_.data() + first;
    args.max = max;
    args.sum = sum;
    args.out = out;
    return args;
  }

  void check_row(const KernelTable& table, int64_t r, float max, float sum, const float* out);
  uint8_t* k() { return k_.data(); }
  uint8_t* v() { return v_.data(); }

 private:
  std::vector<StoredElement> stored(Side side, const uint8_t* tile, int64_t d) const {
    std::vector<StoredElement> out;
    for (int64_t p = 0; p < kTilePositions; ++p) {
      for (int64_t i = 0; i < d; ++i) {
        out.push_back(stored_element(setup_.type, side, tile, d, p, i));
      }
    }
    return out;
  }

  Setup setup_;
  Guarded<uint8_t> k_, v_;
  Guarded<float> q_;
  std::vector<const float*> queries_;
  std::vector<int32_t> begin_, end_;
  std::vector<float> keys_, values_;  // [64][d]
  std::vector<StoredElement> stored_keys_, stored_values_;
};

void Tile::check_row(const KernelTable& table, int64_t r, float max, float sum, const float* out) {
  const auto row = static_cast<size_t>(r);
  const int32_t begin = begin_[row], end = end_[row];
  const std::string text = setup_.text(table) + " row " + std::to_string(r) + " keys " +
                           std::to_string(begin) + "…" + std::to_string(end);
  if (begin == end) {
    EXPECT_EQ(max, -std::numeric_limits<float>::infinity()) << text;
    EXPECT_EQ(sum, 0.0f) << text;
    for (int64_t i = 0; i < setup_.d_v; ++i) EXPECT_EQ(out[i], 0.0f) << text;
    return;
  }
  std::vector<double> score;
  double largest = -std::numeric_limits<double>::infinity(), smallest = -largest, magnitude = 0;
  for (int64_t p = begin; p < end; ++p) {
    double dot = 0, absolute = 0;
    for (int64_t i = 0; i < setup_.d_k; ++i) {
      const auto q = static_cast<double>(queries_[row][i]);
      const StoredElement& key = stored_keys_[static_cast<size_t>(p * setup_.d_k + i)];
      dot += q * key.value;
      absolute += std::fabs(q) * key.magnitude;
    }
    const auto scale = static_cast<double>(0.37f);
    const auto cap = static_cast<double>(setup_.soft_cap);
    dot *= scale;
    if (cap > 0) dot = cap * std::tanh(dot / cap);
    score.push_back(dot);
    magnitude = std::max(magnitude, absolute * scale);
    largest = std::max(largest, dot);
    smallest = std::min(smallest, dot);
  }
  const double u = 0x1p-24;
  const bool quantised = setup_.type == KvType::kQ8 || setup_.type == KvType::kQ4;
  const auto roundings =
      static_cast<double>(setup_.d_k + 2 + (quantised ? 2 * kv_blocks(setup_.d_k) + 1 : 0));
  const double epsilon =
      testing::gamma_f32(roundings) * magnitude + static_cast<double>(setup_.soft_cap) * 8 * u;
  const double eta = std::expm1(2 * epsilon + u * (largest - smallest)) + 4 * u;
  const double kappa = eta + testing::gamma_f32(quantised ? 66 + 24 : 66);
  double exact_sum = 0;
  for (const double s : score) exact_sum += std::exp(s - largest);
  ASSERT_NEAR(static_cast<double>(max), largest, epsilon) << text;
  ASSERT_NEAR(static_cast<double>(max) + std::log(static_cast<double>(sum)),
              largest + std::log(exact_sum), epsilon + kappa / (1 - kappa) + u * std::fabs(largest))
      << text;
  for (int64_t i = 0; i < setup_.d_v; ++i) {
    double exact = 0, absolute = 0;
    for (int64_t p = begin; p < end; ++p) {
      const double weight = std::exp(score[static_cast<size_t>(p - begin)] - largest);
      const StoredElement& value = stored_values_[static_cast<size_t>(p * setup_.d_v + i)];
      exact += weight * value.value;
      absolute += weight * value.magnitude;
    }
    ASSERT_NEAR(static_cast<double>(out[i]) / static_cast<double>(sum), exact / exact_sum,
                2 * kappa / (1 - kappa) * absolute / exact_sum)
        << text << " element " << i;
  }
}

void check(const KernelTable& table, const Setup& setup, bool causal, std::mt19937& random) {
  Tile tile(setup, causal, random);
  ASSERT_NO_FATAL_FAILURE(tile.store(table));
  Guarded<float> max(setup.n, 4), sum(setup.n, 4), out(setup.n * setup.d_v, 4);
  table.attention_tile(tile.args(0, setup.n, max.data(), sum.data(), out.data()));
  ASSERT_TRUE(max.intact() && sum.intact() && out.intact()) << setup.text(table);
  for (int64_t r = 0; r < setup.n; ++r) {
    ASSERT_NO_FATAL_FAILURE(tile.check_row(table, r, max[r], sum[r], out.data() + r * setup.d_v));
  }
  // A row alone, and any run of rows, gives the bits that it has in the whole call.
  for (int64_t size = 1; size < setup.n; size += 2) {
    for (int64_t first = 0; first + size <= setup.n; ++first) {
      Guarded<float> max2(size, 4), sum2(size, 4), out2(size * setup.d_v, 4);
      table.attention_tile(tile.args(first, size, max2.data(), sum2.data(), out2.data()));
      ASSERT_TRUE(max2.intact() && sum2.intact() && out2.intact()) << setup.text(table);
      for (int64_t r = 0; r < size; ++r) {
        ASSERT_TRUE(testing::same_bits(max2[r], max[first + r])) << setup.text(table);
        ASSERT_TRUE(testing::same_bits(sum2[r], sum[first + r])) << setup.text(table);
        for (int64_t i = 0; i < setup.d_v; ++i) {
          ASSERT_TRUE(testing::same_bits(out2[r * setup.d_v + i], out[(first + r) * setup.d_v + i]))
              << setup.text(table) << " rows from " << first << ", " << size << ", row " << r;
        }
      }
    }
  }
}

TEST(Attention, WithinBoundAndRowsIndependent) {
  std::mt19937 random(7);
  constexpr int64_t kHeadSizes[][2] = {{1, 1},   {3, 5},   {7, 8},   {8, 7},   {12, 12},  {16, 16},
                                       {24, 40}, {40, 24}, {64, 64}, {80, 33}, {129, 128}};
  for (const KernelTable* table : testing::runnable_tables()) {
    for (const KvType type : testing::kKvTypes) {
      for (const auto& [d_k, d_v] : kHeadSizes) {
        for (const int64_t n : {1, 2, 3, 4, 5, 6, 7, 9, 16}) {
          for (const float cap : {0.0f, 5.0f}) {
            for (const bool causal : {false, true}) {
              ASSERT_NO_FATAL_FAILURE(check(*table, {type, d_k, d_v, n, cap}, causal, random));
            }
          }
        }
      }
    }
  }
}

// What is not a number shows: a query or a key in the sum, so that no row passes for one that sees
// nothing; a value in its elements of the output.
TEST(Attention, NanIsNeverHidden) {
  std::mt19937 random(9);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr int64_t kD = 40;
  for (const KernelTable* table : testing::runnable_tables()) {
    for (const KvType type : testing::kKvTypes) {
      for (const char* where : {"query", "key", "value"}) {
        Tile tile({type, kD, kD, 3, 0}, true, random);
        ASSERT_NO_FATAL_FAILURE(tile.store(*table));
        std::vector<float> bad(kD, 0.5f);
        bad[35] = kNan;
        float max = 0, sum = 0, out[kD];
        AttentionTileArgs args = tile.args(0, 1, &max, &sum, out);
        const float* q = bad.data();
        if (where == std::string("query")) args.q = &q;
        if (where == std::string("key")) table->store_key(type, q, kD, 5, tile.k());
        if (where == std::string("value")) table->store_value(type, q, kD, 5, tile.v());
        table->attention_tile(args);
        float merged_max = -std::numeric_limits<float>::infinity(), merged_sum = 0;
        float merged[kD] = {};
        table->attention_merge(max, sum, out, kD, &merged_max, &merged_sum, merged);
        table->attention_finish(merged_sum, kD, merged);
        const std::string text = std::string(table->name) + ' ' + kv_type_name(type) + ' ' + where;
        const bool in_value = where == std::string("value");
        EXPECT_EQ(std::isnan(sum), !in_value) << text;
        for (int64_t i = 0; i < kD; ++i) {
          const bool of_the_block =
              type == KvType::kQ8 || type == KvType::kQ4 ? i / 32 == 35 / 32 : i == 35;
          EXPECT_EQ(std::isnan(merged[i]), !in_value || of_the_block) << text << ' ' << i;
        }
      }
    }
  }
}

TEST(Attention, MergingTilesIsSoftmaxOverAllOfThem) {
  std::mt19937 random(10);
  std::uniform_real_distribution<float> uniform(-3, 3);
  for (const KernelTable* table : testing::runnable_tables()) {
    for (const int64_t d : {1, 7, 8, 20, 64}) {
      Guarded<float> out(d, 4);
      for (int64_t i = 0; i < d; ++i) out[i] = 0;
      float max = -std::numeric_limits<float>::infinity(), sum = 0;
      std::vector<double> exact(static_cast<size_t>(d));
      double weights = 0;
      for (int t = 0; t < 9; ++t) {
        Guarded<float> tile(d, 4);
        // Tile 4 shows nothing; tile 6 makes all before it vanish.
        const float tile_max = t == 6 ? 200.0f : uniform(random) * 10;
        const float tile_sum = 1 + std::fabs(uniform(random));
        for (int64_t i = 0; i < d; ++i) tile[i] = t == 4 ? 0 : uniform(random);
        if (t == 4) {
          const float before = max;
          table->attention_merge(-std::numeric_limits<float>::infinity(), 0, tile.data(), d, &max,
                                 &sum, out.data());
          EXPECT_EQ(max, before);
          continue;
        }
        const double weight = std::exp(static_cast<double>(tile_max) - 200);
        weights += weight * static_cast<double>(tile_sum);
        for (int64_t i = 0; i < d; ++i) {
          exact[static_cast<size_t>(i)] += weight * static_cast<double>(tile[i]);
        }
        table->attention_merge(tile_max, tile_sum, tile.data(), d, &max, &sum, out.data());
      }
      EXPECT_EQ(max, 200.0f);
      table->attention_finish(sum, d, out.data());
      ASSERT_TRUE(out.intact());
      for (int64_t i = 0; i < d; ++i) {
        // Nine merges of at most four roundings and two exps of 2 ulp, each against values ≤ 3.
        EXPECT_NEAR(static_cast<double>(out[i]), exact[static_cast<size_t>(i)] / weights,
                    testing::gamma_f32(9 * 8) * 3)
            << table->name;
      }
    }
  }
}

}  // namespace
}  // namespace cutaway::kernels
