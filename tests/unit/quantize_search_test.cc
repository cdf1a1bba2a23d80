// The searched quantisers: against the plain conversion, against each other's instruction sets, at
// the ends of what a type can hold, and on values that a type holds exactly.
#include "formats/quantize_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "base/cpu_features.h"
#include "formats/quantize_row.h"
#include "kernels/layout.h"

namespace cutaway::formats {
namespace {

constexpr int64_t kRow = 1024;

class EveryType : public ::testing::TestWithParam<DType> {
 protected:
  DType type() const { return GetParam(); }

  std::vector<uint8_t> searched(const std::vector<float>& x,
                                const std::vector<float>& importance = {}) const {
    std::vector<uint8_t> out(dtype_bytes(type(), x.size()));
    quantize_row_searched(type(), x.data(), importance.empty() ? nullptr : importance.data(),
                          static_cast<int64_t>(x.size()), out.data());
    return out;
  }
  std::vector<float> decoded(const std::vector<uint8_t>& bytes, size_t n) const {
    std::vector<float> out(n);
    kernels::dequantize(type(), bytes.data(), static_cast<int64_t>(n), out.data());
    return out;
  }
  std::vector<float> round_trip(const std::vector<float>& x,
                                const std::vector<float>& importance = {}) const {
    return decoded(searched(x, importance), x.size());
  }
  std::vector<float> plain(const std::vector<float>& x) const {
    std::vector<uint8_t> out(dtype_bytes(type(), x.size()));
    quantize_row(type(), x.data(), static_cast<int64_t>(x.size()), out.data());
    return decoded(out, x.size());
  }
};

double error(const std::vector<float>& x, const std::vector<float>& y,
             const std::vector<float>& importance = {}) {
  double off = 0, all = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double w = importance.empty() ? 1 : importance[i];
    off += w * std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
    all += w * std::pow(static_cast<double>(x[i]), 2);
  }
  return all > 0 ? std::sqrt(off / all) : std::sqrt(off);
}

// Rows of many kinds. Some of their blocks have one value, some none, some one that is far off.
std::vector<std::vector<float>> rows() {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> whole(-8, 8);
  std::vector<std::vector<float>> out;
  const auto add = [&](auto&& value) {
    std::vector<float> row(kRow);
    for (float& x : row) x = value();
    out.push_back(row);
  };
  for (int i = 0; i < 12; ++i) {
    add([&] { return normal(random) * 0.02f; });
    add([&] { return std::fabs(normal(random)) + 3; });
    add([&] { return -std::fabs(normal(random)) - 3; });
    add([&] { return static_cast<float>(whole(random)) * 0.5f; });
    add([&] { return normal(random) * (whole(random) == 8 ? 300.0f : 0.1f); });
    add([&] { return normal(random) * 1e-6f; });
    add([&] { return normal(random) * 15000.0f; });
    add([&] { return std::exp(normal(random) * 3) * 1e-3f; });
  }
  for (auto& row : out) {
    for (float& x : row) x = std::fmin(std::fmax(x, -65504.0f), 65504.0f);
  }
  add([] { return 0.0f; });
  add([] { return 1.5f; });
  add([] { return -1.5f; });
  add([] { return 65504.0f; });
  add([] { return 1e-30f; });
  std::vector<float> one(kRow, 0.0f);
  one[300] = -2;
  out.push_back(one);
  return out;
}

std::vector<float> importance_of(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(kRow);
  for (float& v : out) v = std::exp(2 * normal(random));
  for (size_t i = 64; i < 96; ++i) out[i] = 0;  // a block that no activation reaches
  return out;
}

// How much each value of a row counts where nothing is known of its column.
std::vector<float> weights_without_importance(DType type, const std::vector<float>& x) {
  std::vector<float> out(x.size(), 1.0f);
  const bool magnitude = type == DType::kIQ4_NL || type == DType::kIQ4_XS;
  const bool larger =
      type == DType::kQ4_0 || type == DType::kQ5_0 || type == DType::kQ3_K || type == DType::kQ4_K;
  double mean = 0;
  for (const float v : x) mean += static_cast<double>(std::fabs(v)) / static_cast<double>(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    if (magnitude) out[i] = std::fabs(x[i]);
    if (larger) out[i] = static_cast<float>(std::hypot(mean, static_cast<double>(x[i])));
  }
  return out;
}

TEST_P(EveryType, HasTheSameBytesOnEveryInstructionSet) {
  const LaneSearch* avx2 = cpu_features().avx2 ? lane_search_avx2() : nullptr;
  if (avx2 == nullptr) GTEST_SKIP() << "one instruction set";
  const std::vector<float> importance = importance_of(5);
  for (const std::vector<float>& x : rows()) {
    for (const float* w : {static_cast<const float*>(nullptr), importance.data()}) {
      std::vector<uint8_t> a(dtype_bytes(type(), x.size())), b(a.size());
      quantize_row_searched(lane_search_base(), type(), x.data(), w, kRow, a.data());
      quantize_row_searched(*avx2, type(), x.data(), w, kRow, b.data());
      ASSERT_EQ(a, b);
    }
  }
}

TEST_P(EveryType, IsNeverWorseThanThePlainConversion) {
  for (const std::vector<float>& x : rows()) {
    const std::vector<float> y = round_trip(x);
    for (const float v : y) ASSERT_TRUE(std::isfinite(v));
    const std::vector<float> w = weights_without_importance(type(), x);
    EXPECT_LE(error(x, y, w), error(x, plain(x), w) * 1.0001 + 1e-12) << x[0] << " " << x[1];
  }
}

TEST_P(EveryType, ServesTheImportantColumns) {
  const std::vector<float> importance = importance_of(6);
  std::mt19937 random(21);
  std::normal_distribution<float> normal;
  double with = 0, without = 0;
  for (int i = 0; i < 16; ++i) {
    std::vector<float> x(kRow);
    for (float& v : x) v = normal(random);
    with += error(x, round_trip(x, importance), importance);
    without += error(x, round_trip(x), importance);
  }
  if (type() == DType::kMXFP4) {
    EXPECT_LT(with, 0.995 * without);  // a power of two or its neighbour
  } else if (is_searched_type(type())) {
    EXPECT_LT(with, 0.97 * without);
  } else {
    EXPECT_EQ(with, without);  // there is no choice to make
  }
}

TEST_P(EveryType, ImportanceThatIsAllAlikeOrZeroChangesNothing) {
  const std::vector<float> x = rows()[0];
  EXPECT_EQ(searched(x), searched(x, std::vector<float>(kRow, 0.0f)));
  std::vector<float> alike = weights_without_importance(type(), x);
  for (float& w : alike) w *= 0.25f;
  EXPECT_EQ(searched(x), searched(x, alike));
  // Of any size: no product of it with the values overflows.
  for (const float scale : {1e-20f, 1e20f}) {
    for (const float v : round_trip(x, std::vector<float>(kRow, scale)))
      ASSERT_TRUE(std::isfinite(v));
  }
}

TEST_P(EveryType, ZeroStaysZero) {
  for (const float v : round_trip(std::vector<float>(kRow, 0.0f))) ASSERT_EQ(v, 0);
}

// The relative error on normal values is that of the type's steps: with n of them over a range of
// ±a in which all but the rarest of a block's values lie, 2a / n / √12.
TEST_P(EveryType, HasTheErrorOfItsSteps) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(64 * kRow);
  for (float& v : x) v = normal(random);
  const std::map<DType, double> bounds = {
      {DType::kF32, 0},      {DType::kF16, 3e-4},     {DType::kBF16, 2.5e-3},
      {DType::kQ8_0, 0.007}, {DType::kQ5_0, 0.047},   {DType::kQ5_1, 0.041},
      {DType::kQ4_0, 0.092}, {DType::kQ4_1, 0.083},   {DType::kQ6_K, 0.02},
      {DType::kQ5_K, 0.041}, {DType::kQ4_K, 0.083},   {DType::kQ3_K, 0.17},
      {DType::kQ2_K, 0.3},   {DType::kIQ4_NL, 0.083}, {DType::kIQ4_XS, 0.084},
      {DType::kMXFP4, 0.13}};
  const double found = error(x, round_trip(x));
  EXPECT_LE(found, bounds.at(type()));
  EXPECT_GE(found, bounds.at(type()) * 0.5);  // the bound says something
}

// What a file of this type holds comes back, when its blocks use their first and last codes, as
// those of every quantiser do.
TEST_P(EveryType, ReturnsWhatTheTypeHolds) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> x(16 * kRow);
  for (float& v : x) v = normal(random);
  const std::vector<float> held = plain(x);
  const double again = error(held, round_trip(held));
  // Super-blocks have more scales than one can tell from the values.
  const bool super = dtype_traits(type()).block_elements == 256;
  EXPECT_LE(again, super ? 0.01 : type() == DType::kQ8_0 ? 1e-3 : 1e-6);
}

INSTANTIATE_TEST_SUITE_P(, EveryType, ::testing::ValuesIn(row_types().begin(), row_types().end()),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace cutaway::formats
