#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <limits>
#include <numbers>

#include "tests/kernels/kernels_testing.h"

namespace cutaway::kernels {
namespace {

using testing::Guarded;

constexpr int64_t kLengths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 576, 577};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void fill(Guarded<float>& x, std::mt19937& random, float size = 1) {
  std::normal_distribution<float> normal(0, size);
  for (int64_t i = 0; i < x.size(); ++i) x[i] = normal(random);
}

struct Quantised {
  std::vector<int8_t> q;
  std::vector<float> scale;
  std::vector<HalfSums> sum;
  std::vector<float> total;
};

Quantised quantise(const KernelTable& table, const std::vector<float>& x) {
  const auto cols = static_cast<int64_t>(x.size());
  Guarded<float> in(cols, 4), scale(cols / 32, 4), total(cols / 32, 4);
  Guarded<int8_t> q(cols, 1);
  Guarded<HalfSums> sum(cols / 32, 4);
  std::copy(x.begin(), x.end(), in.data());
  table.quantize_q8(in.data(), cols, 1, cols, 0,
                    {q.data(), scale.data(), sum.data(), total.data(), cols});
  EXPECT_TRUE(q.intact() && scale.intact() && sum.intact() && total.intact()) << table.name;
  return {{q.data(), q.data() + cols},
          {scale.data(), scale.data() + cols / 32},
          {sum.data(), sum.data() + cols / 32},
          {total.data(), total.data() + cols / 32}};
}

TEST(QuantizeQ8, RoundsToNearestAndSumsExactly) {
  std::mt19937 random(1);
  for (const KernelTable* table : testing::runnable_tables()) {
    for (const int64_t cols : {32, 64, 96, 576, 1536}) {
      for (const float size : {1e-30f, 1e-3f, 1.0f, 1e30f}) {
        std::normal_distribution<float> normal(0, size);
        std::vector<float> x(static_cast<size_t>(cols));
        for (float& value : x) value = normal(random);
        const Quantised got = quantise(*table, x);
        for (size_t b = 0; b < got.scale.size(); ++b) {
          float amax = 0;
          int32_t half[2] = {0, 0};
          int most = 0;
          for (size_t i = 32 * b; i < 32 * b + 32; ++i) {
            amax = std::max(amax, std::fabs(x[i]));
            half[i % 32 / 16] += got.q[i];
            most = std::max(most, std::abs(int{got.q[i]}));
          }
          EXPECT_EQ(got.scale[b], amax / 127) << table->name;
          EXPECT_EQ(got.sum[b].low, half[0]) << table->name;
          EXPECT_EQ(got.sum[b].high, half[1]) << table->name;
          EXPECT_EQ(got.total[b], got.scale[b] * static_cast<float>(half[0] + half[1]))
              << table->name;
          EXPECT_EQ(most, 127) << table->name;  // the largest value uses the whole range
          for (size_t i = 32 * b; i < 32 * b + 32; ++i) {
            // x·(127 / amax) has two roundings before the exact rounding to an integer.
            const double steps = static_cast<double>(x[i]) * 127 / static_cast<double>(amax);
            EXPECT_LE(std::fabs(got.q[i] - steps), 0.5 + 127 * testing::gamma_f32(2));
          }
        }
      }
    }
  }
}

TEST(QuantizeQ8, TiesGoToEvenZerosStayAndNothingBadHides) {
  for (const KernelTable* table : testing::runnable_tables()) {
    std::vector<float> x(32 * 6, 0.0f);
    x[0] = 127;  // scale 1
    for (int i = 0; i < 8; ++i) x[static_cast<size_t>(i + 1)] = static_cast<float>(i) - 3.5f;
    // Block 1: zeros. Block 2: the smallest number. Block 3: NaN. Block 4: infinity. Block 5: −0.
    x[32 * 2 + 5] = std::numeric_limits<float>::denorm_min();
    x[32 * 3 + 31] = kNan;
    x[32 * 3 + 2] = 5;
    x[32 * 4 + 7] = -kInfinity;
    for (size_t i = 32 * 5; i < 32 * 6; ++i) x[i] = -0.0f;
    const Quantised got = quantise(*table, x);
    const int8_t expected[8] = {-4, -2, -2, 0, 0, 2, 2, 4};
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(got.q[i + 1], expected[i]) << table->name;
    EXPECT_EQ(got.scale[0], 1.0f);
    for (const size_t b : {size_t{1}, size_t{2}, size_t{5}}) {
      EXPECT_TRUE(testing::same_bits(got.scale[b], 0.0f)) << table->name << ' ' << b;
    }
    EXPECT_TRUE(std::isnan(got.scale[3]) && std::isnan(got.scale[4])) << table->name;
    for (size_t i = 32; i < x.size(); ++i) EXPECT_EQ(got.q[i], 0) << table->name;
    for (size_t b = 1; b < 6; ++b) {
      EXPECT_EQ(got.sum[b], HalfSums{}) << table->name;
      EXPECT_EQ(std::isnan(got.total[b]), b == 3 || b == 4) << table->name;
    }
  }
}

// Several rows at once, and into blocks in the middle of wider rows.
TEST(QuantizeQ8, RowsAndBlocksAreIndependent) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  constexpr int64_t kRows = 5, kCols = 96, kStride = 101, kWide = 256, kFirst = 3;
  std::vector<float> x(kRows * kStride);
  for (float& value : x) value = normal(random);
  for (const KernelTable* table : testing::runnable_tables()) {
    constexpr int64_t kBlocks = kRows * kWide / 32;
    Guarded<int8_t> q(kRows * kWide, 1);
    Guarded<float> scale(kBlocks, 4), total(kBlocks, 4);
    Guarded<HalfSums> sum(kBlocks, 4);
    table->quantize_q8(x.data(), kStride, kRows, kCols, kFirst,
                       {q.data(), scale.data(), sum.data(), total.data(), kWide});
    for (int64_t c = 0; c < kRows; ++c) {
      const Quantised alone =
          quantise(*table, {x.begin() + c * kStride, x.begin() + c * kStride + kCols});
      for (int64_t b = 0; b < kWide / 32; ++b) {
        const int64_t at = c * kWide / 32 + b;
        if (b < kFirst || b >= kFirst + kCols / 32) {
          EXPECT_TRUE(q.untouched(at * 32) && q.untouched(at * 32 + 31) && scale.untouched(at) &&
                      sum.untouched(at) && total.untouched(at))
              << table->name;
          continue;
        }
        const auto from = static_cast<size_t>(b - kFirst);
        EXPECT_EQ(scale[at], alone.scale[from]) << table->name;
        EXPECT_EQ(sum[at], alone.sum[from]) << table->name;
        EXPECT_EQ(total[at], alone.total[from]) << table->name;
        for (size_t i = 0; i < 32; ++i) {
          EXPECT_EQ(q[at * 32 + static_cast<int64_t>(i)], alone.q[from * 32 + i]) << table->name;
        }
      }
    }
  }
}

TEST(QuantizeQ8, AllTablesGiveTheSameBits) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> x(32 * 3000);
  for (float& value : x) value = normal(random);
  const Quantised expected = quantise(*ref_table(), x);
  for (const KernelTable* table : testing::runnable_tables()) {
    const Quantised got = quantise(*table, x);
    EXPECT_EQ(got.q, expected.q) << table->name;
    EXPECT_EQ(got.scale, expected.scale) << table->name;
    EXPECT_EQ(got.sum, expected.sum) << table->name;
    EXPECT_EQ(got.total, expected.total) << table->name;
  }
}

TEST(RmsNorm, WithinBoundAlsoInPlace) {
  std::mt19937 random(3);
  for (const KernelTable* table : testing::runnable_tables()) {
    for (const int64_t n : kLengths) {
      Guarded<float> x(n, 4), weight(n, 4), out(n, 4);
      fill(x, random, 30);
      fill(weight, random);
      double squares = 0;
      for (int64_t i = 0; i < n; ++i) squares += std::pow(static_cast<double>(x[i]), 2);
      const double exact = std::sqrt(squares / static_cast<double>(n) + 1e-5);
      const float scale = table->rms_norm(x.data(), weight.data(), 1e-5f, n, out.data());
      // The sum is taken in double, so the scale is one rounding to f32 away.
      EXPECT_NEAR(static_cast<double>(scale), exact, exact * 1.01 * 0x1p-24) << table->name;
      ASSERT_TRUE(out.intact());
      for (int64_t i = 0; i < n; ++i) {
        const double value = static_cast<double>(x[i]) / exact * static_cast<double>(weight[i]);
        ASSERT_NEAR(static_cast<double>(out[i]), value, std::fabs(value) * testing::gamma_f32(4))
            << table->name << ' ' << n;
      }
      EXPECT_EQ(table->rms_norm(x.data(), weight.data(), 1e-5f, n, x.data()), scale);
      ASSERT_TRUE(x.intact());
      for (int64_t i = 0; i < n; ++i) ASSERT_TRUE(testing::same_bits(x[i], out[i]));
    }
  }
}

TEST(Rope, RotatesEachPairAndNothingElse) {
  std::mt19937 random(4);
  for (const KernelTable* table : testing::runnable_tables()) {
    for (const int64_t n_rot : {2, 4, 6, 8, 14, 16, 24, 32, 40, 64, 128}) {
      for (const bool interleaved : {false, true}) {
        Guarded<float> x(n_rot + 3, 4), before(n_rot + 3, 4), cos(n_rot / 2, 4), sin(n_rot / 2, 4);
        fill(x, random);
        for (int64_t i = 0; i < x.size(); ++i) before[i] = x[i];
        for (int64_t i = 0; i < n_rot / 2; ++i) {
          cos[i] = std::cos(static_cast<float>(i) + 0.3f);
          sin[i] = std::sin(static_cast<float>(i) + 0.3f);
        }
        table->rope(x.data(), cos.data(), sin.data(), n_rot, interleaved);
        ASSERT_TRUE(x.intact());
        for (int64_t i = 0; i < n_rot / 2; ++i) {
          const int64_t at_a = interleaved ? 2 * i : i;
          const int64_t at_b = interleaved ? 2 * i + 1 : i + n_rot / 2;
          const double a = static_cast<double>(before[at_a]), b = static_cast<double>(before[at_b]);
          const auto c = static_cast<double>(cos[i]), s = static_cast<double>(sin[i]);
          const double bound = testing::gamma_f32(2) * (std::fabs(a) + std::fabs(b));
          ASSERT_NEAR(static_cast<double>(x[at_a]), a * c - b * s, bound) << table->name;
          ASSERT_NEAR(static_cast<double>(x[at_b]), b * c + a * s, bound) << table->name;
        }
        for (int64_t i = n_rot; i < n_rot + 3; ++i) ASSERT_EQ(x[i], before[i]);
      }
    }
  }
}

TEST(Elementwise, AddIsExactlyTheSum) {
  std::mt19937 random(5);
  for (const KernelTable* table : testing::runnable_tables()) {
    for (const int64_t n : kLengths) {
      Guarded<float> a(n, 4), b(n, 4), out(n, 4);
      fill(a, random);
      fill(b, random);
      table->add(a.data(), b.data(), n, out.data());
      ASSERT_TRUE(out.intact());
      for (int64_t i = 0; i < n; ++i) ASSERT_TRUE(testing::same_bits(out[i], a[i] + b[i]));
      table->add(a.data(), b.data(), n, a.data());
      ASSERT_TRUE(a.intact());
      for (int64_t i = 0; i < n; ++i) ASSERT_TRUE(testing::same_bits(a[i], out[i]));
    }
  }
}

TEST(Elementwise, SiluMulWithinBoundWithTheBitsOfRef) {
  std::mt19937 random(6);
  for (const KernelTable* table : testing::runnable_tables()) {
    for (const int64_t n : kLengths) {
      Guarded<float> gate(n, 4), up(n, 4), out(n, 4), expected(n, 4);
      fill(gate, random, 20);
      fill(up, random);
      const float special[] = {0.0f, -0.0f, 88.0f, -88.0f, 120.0f, -120.0f, 1e-40f, kNan};
      for (int64_t i = 0; i < n && n > 8 && i < 8; ++i) gate[i] = special[i];
      table->silu_mul(gate.data(), up.data(), n, out.data());
      ref_table()->silu_mul(gate.data(), up.data(), n, expected.data());
      ASSERT_TRUE(out.intact());
      for (int64_t i = 0; i < n; ++i) {
        if (std::isnan(gate[i])) {
          EXPECT_TRUE(std::isnan(out[i])) << table->name;
          continue;
        }
        EXPECT_TRUE(testing::same_bits(out[i], expected[i])) << table->name << ' ' << gate[i];
        const auto g = static_cast<double>(gate[i]);
        const double exact = g / (1 + std::exp(-g)) * static_cast<double>(up[i]);
        // exp: 2 ulp = 4u of 1 + exp at most; one sum, one quotient, one product. Beyond −88 the
        // exponential overflows and the result is 0, as the exact one nearly is.
        EXPECT_NEAR(static_cast<double>(out[i]), exact,
                    std::fabs(exact) * testing::gamma_f32(7) + 1e-35)
            << table->name << ' ' << gate[i];
      }
    }
  }
}

// up == nullptr leaves gelu(gate) alone.
TEST(GeluMul, EqualsTheDefinitionAndTheReference) {
  std::mt19937 random(29);
  for (const KernelTable* table : testing::runnable_tables()) {
    for (const int64_t n : kLengths) {
      for (const bool gated : {true, false}) {
        Guarded<float> gate(n, 4), up(n, 4), out(n, 4), expected(n, 4);
        fill(gate, random, 8);
        fill(up, random);
        const float special[] = {0.0f, -0.0f, 12.0f, -12.0f, 1e30f, -1e30f, 1e-40f, kNan};
        for (int64_t i = 0; i < n && n > 8 && i < 8; ++i) gate[i] = special[i];
        table->gelu_mul(gate.data(), gated ? up.data() : nullptr, n, out.data());
        ref_table()->gelu_mul(gate.data(), gated ? up.data() : nullptr, n, expected.data());
        ASSERT_TRUE(out.intact());
        for (int64_t i = 0; i < n; ++i) {
          if (std::isnan(gate[i])) {
            EXPECT_TRUE(std::isnan(out[i])) << table->name;
            continue;
          }
          EXPECT_TRUE(testing::same_bits(out[i], expected[i])) << table->name << ' ' << gate[i];
          const auto x = static_cast<double>(gate[i]);
          const double u = gated ? static_cast<double>(up[i]) : 1.0;
          const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
          const double exact = 0.5 * x * (1 + std::tanh(inner)) * u;
          // 1 + tanh is near 0 for negative x: errors are relative to x. The argument of tanh has
          // five roundings and those of its two constants, and moves tanh by no more than 0.45 of
          // its relative error; tanh: 2 ulp; one sum, three products.
          EXPECT_NEAR(static_cast<double>(out[i]), exact,
                      std::fabs(x * u) * testing::gamma_f32(12) + 1e-44)
              << table->name << ' ' << gate[i];
        }
      }
    }
  }
}

TEST(SoftCap, EqualsTheDefinitionAndTheReference) {
  std::mt19937 random(31);
  for (const KernelTable* table : testing::runnable_tables()) {
    for (const int64_t n : kLengths) {
      for (const float cap : {0.5f, 30.0f}) {
        Guarded<float> x(n, 4), out(n, 4), expected(n, 4);
        fill(x, random, 40);
        const float special[] = {0.0f, -0.0f, 1e30f, -1e30f, 1e-40f, kNan};
        for (int64_t i = 0; i < n && n > 8 && i < 6; ++i) x[i] = special[i];
        table->soft_cap(x.data(), cap, n, out.data());
        ref_table()->soft_cap(x.data(), cap, n, expected.data());
        ASSERT_TRUE(out.intact());
        for (int64_t i = 0; i < n; ++i) {
          if (std::isnan(x[i])) {
            EXPECT_TRUE(std::isnan(out[i])) << table->name;
            continue;
          }
          EXPECT_TRUE(testing::same_bits(out[i], expected[i])) << table->name << ' ' << x[i];
          const auto c = static_cast<double>(cap);
          const double exact = c * std::tanh(static_cast<double>(x[i]) / c);
          // One quotient, tanh within 2 ulp, one product. A subnormal quotient is rounded to a step
          // of 2^-149, which is then multiplied.
          EXPECT_NEAR(static_cast<double>(out[i]), exact,
                      std::fabs(exact) * testing::gamma_f32(6) + (c + 1) * 0x1p-149)
              << table->name << ' ' << x[i];
        }
        table->soft_cap(x.data(), cap, n, x.data());  // in place
        for (int64_t i = 0; i < n; ++i) {
          EXPECT_TRUE(std::isnan(x[i]) || testing::same_bits(out[i], x[i])) << table->name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace cutaway::kernels
