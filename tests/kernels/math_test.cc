// Our exp, tanh, log, sin and cos against long double libm.
#include "kernels/math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>

#include "tests/kernels/kernels_testing.h"

namespace cutaway::kernels {
namespace {

// Long double is software where tests run under an emulator: there the samples are fewer.
const bool kFew = testing::emulated();
const uint64_t kFloatStep = kFew ? 30011 : 499;
const int kSamples = kFew ? 20000 : 1000000;
const int kPositionStep = kFew ? 41 : 1;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Error in units in the last place of the exact result (f32, the smallest subnormal below).
long double ulps_f32(float got, long double exact) {
  const long double magnitude = std::fabs(exact);
  const int exponent = magnitude > 0 ? std::max(std::ilogb(magnitude), -126) : -126;
  return std::fabs(static_cast<long double>(got) - exact) / std::ldexp(1.0L, exponent - 23);
}

TEST(ExpF32, WithinTwoUlpEverywhere) {
  long double worst = 0;
  // Floats of both signs; denormal results are rounded once more.
  for (uint64_t i = 0; i < 0x100000000u; i += kFloatStep) {
    const float x = from_bits(static_cast<uint32_t>(i));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(exp_f32(x)));
      continue;
    }
    const long double exact = std::exp(static_cast<long double>(x));
    const float got = exp_f32(x);
    if (exact > static_cast<long double>(std::numeric_limits<float>::max())) {
      ASSERT_EQ(got, kInfinity) << x;
      continue;
    }
    const long double error = ulps_f32(got, exact);
    worst = std::max(worst, error);
    ASSERT_LE(error, 2.0L) << x;
  }
  EXPECT_GT(worst, 0.4L);
  RecordProperty("worst_ulps", std::to_string(static_cast<double>(worst)));
}

TEST(ExpF32, Ends) {
  EXPECT_EQ(exp_f32(-kInfinity), 0.0f);
  EXPECT_EQ(exp_f32(kInfinity), kInfinity);
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp_f32(89.5f), kInfinity);
  EXPECT_EQ(exp_f32(88.8f), kInfinity);
  EXPECT_LT(exp_f32(88.7f), kInfinity);
  EXPECT_EQ(exp_f32(-104.5f), 0.0f);
  EXPECT_GT(exp_f32(-103.0f), 0.0f);
}

TEST(TanhF32, WithinTwoUlpEverywhere) {
  long double worst = 0;
  for (uint64_t i = 0; i < 0x100000000u; i += kFloatStep) {
    const float x = from_bits(static_cast<uint32_t>(i));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(tanh_f32(x)));
      continue;
    }
    const float got = tanh_f32(x);
    const long double error = ulps_f32(got, std::tanh(static_cast<long double>(x)));
    worst = std::max(worst, error);
    ASSERT_LE(error, 2.0L) << x;
    ASSERT_EQ(tanh_f32(-x), -got) << x;
  }
  EXPECT_EQ(tanh_f32(kInfinity), 1.0f);
  EXPECT_EQ(tanh_f32(-kInfinity), -1.0f);
  EXPECT_TRUE(std::signbit(tanh_f32(-0.0f)));
  RecordProperty("worst_ulps", std::to_string(static_cast<double>(worst)));
}

TEST(ExpF64, Within1e15Relative) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> wide(-708, 709), near(-1, 1);
  for (int i = 0; i < kSamples; ++i) {
    const double x = i % 2 == 0 ? wide(random) : near(random);
    const long double exact = std::exp(static_cast<long double>(x));
    ASSERT_LE(std::fabs(static_cast<long double>(exp_f64(x)) - exact), exact * 1e-15L) << x;
  }
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(exp_f64(-infinity), 0.0);
  EXPECT_EQ(exp_f64(infinity), infinity);
  EXPECT_EQ(exp_f64(0.0), 1.0);
  EXPECT_EQ(exp_f64(709.9), infinity);
  EXPECT_EQ(exp_f64(-747.0), 0.0);
  EXPECT_GT(exp_f64(-744.0), 0.0);
  EXPECT_TRUE(std::isnan(exp_f64(std::nan(""))));
}

TEST(LogF64, Within1e15Relative) {
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> exponent(-1074, 1023), near(0.5, 2), close(-1e-6, 1e-6);
  for (int i = 0; i < kSamples; ++i) {
    const double x = i % 3 == 0   ? std::exp2(exponent(random))
                     : i % 3 == 1 ? near(random)
                                  : 1 + close(random);
    const long double exact = std::log(static_cast<long double>(x));
    ASSERT_LE(std::fabs(static_cast<long double>(log_f64(x)) - exact), std::fabs(exact) * 1e-15L)
        << x;
  }
  EXPECT_EQ(log_f64(1.0), 0.0);
  EXPECT_EQ(log_f64(0.0), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(log_f64(-1.0)));
  EXPECT_NEAR(log_f64(std::numeric_limits<double>::denorm_min()), -744.4400719213812, 1e-12);
}

TEST(SincosF64, Within1e15Absolute) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> wide(-1e7, 1e7), near(-4, 4), middle(-10000, 10000);
  const auto check = [](double x) {
    double s, c;
    sincos_f64(x, s, c);
    ASSERT_LE(std::fabs(static_cast<long double>(s) - std::sin(static_cast<long double>(x))),
              1e-15L)
        << x;
    ASSERT_LE(std::fabs(static_cast<long double>(c) - std::cos(static_cast<long double>(x))),
              1e-15L)
        << x;
  };
  for (int i = 0; i < kSamples; ++i) {
    ASSERT_NO_FATAL_FAILURE(check(i % 3 == 0   ? wide(random)
                                  : i % 3 == 1 ? near(random)
                                               : middle(random)));
  }
  // Next to multiples of π/2, where the reduction cancels most, and the positions that rope uses.
  for (int n = -6366197; n <= 6366197; n += kPositionStep * 997) {
    const double x = static_cast<double>(static_cast<long double>(n) * 1.57079632679489661923L);
    ASSERT_NO_FATAL_FAILURE(check(x));
    ASSERT_NO_FATAL_FAILURE(check(std::nextafter(x, 1e9)));
  }
  for (int position = 0; position < 200000; position += kPositionStep)
    ASSERT_NO_FATAL_FAILURE(check(position));
}

}  // namespace
}  // namespace cutaway::kernels
