// Random numbers and the passes over the vocabulary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <set>

#include "sampling/lanes.h"
#include "sampling/philox.h"
#include "sampling/sampler.h"
#include "tests/unit/sampling_oracle.h"

namespace cutaway::sampling {
namespace {

using ::testing::ElementsAre;

// ---- Random numbers and sums ------------------------------------------------------------------

TEST(Philox, KnownAnswers) {  // the vectors that Random123 publishes for philox4x32, 10 rounds
  EXPECT_THAT(philox4x32_10({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  EXPECT_THAT(philox4x32_10({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu},
                            {0xffffffffu, 0xffffffffu}),
              ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(philox4x32_10({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                            {0xa4093822u, 0x299f31d0u}),
              ElementsAre(0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u));
}

TEST(Philox, UniformDependsOnEveryPartOfTheCounter) {
  const double base = draw_uniform(1, 2, 3, DrawPurpose::kToken);
  EXPECT_EQ(base, draw_uniform(1, 2, 3, DrawPurpose::kToken));
  EXPECT_NE(base, draw_uniform(1ull << 40 | 1, 2, 3, DrawPurpose::kToken));
  EXPECT_NE(base, draw_uniform(1, 1ull << 40 | 2, 3, DrawPurpose::kToken));
  EXPECT_NE(base, draw_uniform(1, 2, 4, DrawPurpose::kToken));
  EXPECT_NE(base, draw_uniform(1, 2, 3, DrawPurpose::kDraft));
  // Seed 0, position 0: the first known answer's words, 53 bits of them.
  EXPECT_EQ(draw_uniform(0, 0, 0, DrawPurpose::kToken),
            static_cast<double>(0x6627e8d5e169c58dull >> 11) / 9007199254740992.0);
}

TEST(Philox, UniformIsUniform) {
  constexpr int kBins = 64, kDraws = 64000;
  std::vector<int> bins(kBins);
  for (int i = 0; i < kDraws; ++i) {
    const double u = draw_uniform(42, static_cast<uint64_t>(i), 0, DrawPurpose::kToken);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++bins[static_cast<size_t>(u * kBins)];
  }
  double chi2 = 0;
  for (const int n : bins) chi2 += (n - 1000.0) * (n - 1000.0) / 1000.0;
  EXPECT_LT(chi2, 103.4);  // 63 degrees of freedom, p = 0.001
}

TEST(RandomSeed, FitsInAJsonNumber) {
  std::set<uint64_t> seeds;
  for (int i = 0; i < 100; ++i) seeds.insert(random_seed());
  EXPECT_EQ(seeds.size(), 100u);
  EXPECT_LT(*seeds.rbegin(), 1ull << 53);
}

TEST(ExpSums, SameBitsAsTheScalarExp) {
  std::mt19937 rng(1);
  for (size_t n = 1; n < 200; ++n) {
    std::vector<float> logits(n);
    for (float& l : logits) {
      l = std::uniform_real_distribution<float>(-900, 0)(rng);
      if (rng() % 9 == 0) l = -kInf;
      if (rng() % 9 == 0) l = -std::ldexp(1.0f, -static_cast<int>(rng() % 60));
    }
    logits[rng() % n] = 0;
    const double inverse = n % 3 == 0 ? 1.0 : n % 3 == 1 ? 0.1 : 1.0 / 0.7;
    double lanes[8] = {};
    for (size_t i = 0; i < n; ++i) lanes[i % 8] += exp_weight(logits[i], 0, inverse);
    const double expected = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
                            ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    EXPECT_EQ(std::bit_cast<uint64_t>(exp_sums(logits, 0, inverse).sum),
              std::bit_cast<uint64_t>(expected))
        << n;
  }
  // Each value alone: a wrong last bit of one term cannot hide in a sum.
  for (int i = 0; i < 20000; ++i) {
    const float l = -std::exp2(std::uniform_real_distribution<float>(-40, 10)(rng));
    EXPECT_EQ(exp_sums(std::vector<float>{l}, 0, 1).sum, exp_weight(l, 0, 1)) << l;
  }
}

TEST(LogProbability, AgainstLongDouble) {
  std::mt19937 rng(2);
  for (const size_t n : {1u, 7u, 8u, 9u, 1000u, 49152u}) {
    std::vector<float> logits = random_logits(rng, n);
    long double sum = 0;
    for (const float l : logits) sum += std::exp(static_cast<long double>(l));
    for (const size_t id : {size_t{0}, n / 2, n - 1}) {
      EXPECT_NEAR(log_probability(logits, static_cast<int32_t>(id)),
                  static_cast<double>(static_cast<long double>(logits[id]) - std::log(sum)), 1e-13);
    }
  }
  EXPECT_TRUE(std::isnan(log_probability(std::vector<float>{-kInf, -kInf}, 0)));
  EXPECT_TRUE(std::isnan(log_probability(std::vector<float>{0, kNan}, 0)));
  EXPECT_EQ(log_probability(std::vector<float>{0, -kInf}, 1), -static_cast<double>(kInf));
  EXPECT_NEAR(log_probability(std::vector<float>{1000, 1000}, 1), -std::log(2.0), 1e-12);
}

TEST(ScanLogits, FindsTheLowestIdOfTheLargest) {
  for (size_t n = 1; n < 300; ++n) {
    std::vector<float> logits(n, -3);
    const size_t at = n * 7 % n, again = n - 1;
    logits[at] = logits[again] = 5;
    EXPECT_EQ(scan_logits(logits).argmax, static_cast<int32_t>(at));
    EXPECT_EQ(scan_logits(logits).max, 5);
    EXPECT_FALSE(scan_logits(logits).damaged);
    logits[n / 2] = kNan;
    EXPECT_TRUE(scan_logits(logits).damaged) << n;
    logits[n / 2] = kInf;
    EXPECT_TRUE(scan_logits(logits).damaged) << n;
  }
}

TEST(TopLogprobs, ByLogitThenId) {
  std::mt19937 rng(3);
  for (int round = 0; round < 200; ++round) {
    const std::vector<float> logits = random_logits(rng, 1 + rng() % 5000);
    std::vector<int32_t> order;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] > -kInf) order.push_back(static_cast<int32_t>(i));
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    const auto n = static_cast<int32_t>(rng() % 400);
    const auto top = top_logprobs(logits, n);
    ASSERT_EQ(top.size(), std::min(static_cast<size_t>(n), order.size()));
    for (size_t i = 0; i < top.size(); ++i) {
      ASSERT_EQ(top[i].id, order[i]);
      ASSERT_EQ(top[i].logprob, log_probability(logits, top[i].id)) << "one formula, the same bits";
    }
  }
}

}  // namespace
}  // namespace cutaway::sampling
