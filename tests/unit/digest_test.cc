#include "trace/digest.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace cutaway::trace {
namespace {

std::vector<float> random_values(size_t n) {
  std::mt19937 random(n);
  std::normal_distribution<float> normal(0.5F, 2.0F);
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

TEST(Digest, AgreesWithPlainSums) {
  for (const size_t n : {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 576, 1001}) {
    const auto x = random_values(n);
    double sum = 0, squares = 0;
    float min = x[0], max = x[0];
    for (const float v : x) {
      sum += v;
      squares += double{v} * v;
      min = std::min(min, v);
      max = std::max(max, v);
    }
    const Digest d = digest({x.data(), {static_cast<int64_t>(n)}});
    EXPECT_EQ(d.min, min);
    EXPECT_EQ(d.max, max);
    EXPECT_NEAR(d.mean, sum / static_cast<double>(n), 1e-12 * static_cast<double>(n));
    EXPECT_NEAR(d.l2, std::sqrt(squares), 1e-12 * static_cast<double>(n));
    EXPECT_EQ(d.nan_count, 0U);
    EXPECT_EQ(d.hash, xxh3_128(x.data(), n * sizeof(float)));
  }
}

TEST(Digest, RowsApartAreAsRowsTogether) {
  constexpr int64_t kRows = 5, kColumns = 37, kStride = 64;
  const auto packed = random_values(kRows * kColumns);
  std::vector<float> apart(kRows * kStride, std::nanf(""));
  for (int64_t r = 0; r < kRows; ++r) {
    std::copy_n(packed.data() + r * kColumns, kColumns, apart.data() + r * kStride);
  }
  const Digest a = digest({packed.data(), {kRows, kColumns}});
  const Digest b = digest({apart.data(), {kRows, kColumns}, kStride});
  EXPECT_EQ(a.hash, b.hash);
  EXPECT_EQ(a.min, b.min);
  EXPECT_EQ(a.max, b.max);
  EXPECT_DOUBLE_EQ(a.mean, b.mean);
  EXPECT_DOUBLE_EQ(a.l2, b.l2);
  EXPECT_EQ(b.nan_count, 0U);
}

TEST(Digest, NaNsAreCountedAndLeftOut) {
  std::vector<float> x(20, 3.0F);
  x[0] = x[9] = x[19] = std::nanf("");
  x[5] = -1.0F;
  const Digest d = digest({x.data(), {4, 5}});
  EXPECT_EQ(d.nan_count, 3U);
  EXPECT_EQ(d.min, -1.0F);
  EXPECT_EQ(d.max, 3.0F);
  EXPECT_DOUBLE_EQ(d.mean, (16 * 3.0 - 1.0) / 17);
  EXPECT_EQ(d.n_first, 4);
  EXPECT_TRUE(std::isnan(d.first[0]));
  EXPECT_EQ(d.first[1], 3.0F);
}

TEST(Digest, NothingButNaNs) {
  const std::vector<float> x(3, std::nanf(""));
  const Digest d = digest({x.data(), {3}});
  EXPECT_EQ(d.nan_count, 3U);
  EXPECT_EQ(d.min, 0);
  EXPECT_EQ(d.max, 0);
  EXPECT_EQ(d.mean, 0);
}

TEST(Digest, NothingAtAll) {
  const Digest d = digest({nullptr, {0, 576}});
  EXPECT_EQ(d.n_first, 0);
  EXPECT_EQ(d.hash, xxh3_128(nullptr, 0));
}

TEST(Digest, Infinities) {
  const std::vector<float> x = {1, HUGE_VALF, -HUGE_VALF};
  const Digest d = digest({x.data(), {3}});
  EXPECT_EQ(d.min, -HUGE_VALF);
  EXPECT_EQ(d.max, HUGE_VALF);
  EXPECT_TRUE(std::isnan(d.mean));
}

TEST(Digest, OneChangedBitChangesTheHash) {
  auto x = random_values(576);
  const Digest before = digest({x.data(), {1, 576}});
  x[300] = std::nextafter(x[300], 100.0F);
  EXPECT_NE(digest({x.data(), {1, 576}}).hash, before.hash);
}

}  // namespace
}  // namespace cutaway::trace
