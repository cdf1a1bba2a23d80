// The row quantiser: each format's formula written out plainly here, and the bounds of what comes
// back.
#include "formats/quantize_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "formats/gguf_types.h"
#include "kernels/layout.h"

namespace cutaway::formats {
namespace {

constexpr int64_t kBlock = 32;

std::vector<uint8_t> stored(DType type, const std::vector<float>& x) {
  std::vector<uint8_t> out(dtype_bytes(type, x.size()));
  quantize_row(type, x.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}

std::vector<float> round_trip(DType type, const std::vector<float>& x) {
  const std::vector<uint8_t> bytes = stored(type, x);
  std::vector<float> out(x.size());
  kernels::dequantize(type, bytes.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}

// Rows of many kinds: normal, one-sided, constant, zero, tiny, large, with outliers, with ties.
std::vector<std::vector<float>> rows() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> whole(-8, 8);
  std::vector<std::vector<float>> out;
  const auto add = [&](auto&& value) {
    std::vector<float> row(3 * kBlock);
    for (float& x : row) x = value();
    out.push_back(row);
  };
  for (int i = 0; i < 200; ++i) {
    add([&] { return normal(random) * 0.02f; });
    add([&] { return std::fabs(normal(random)) + 3; });
    add([&] { return -std::fabs(normal(random)) - 3; });
    add([&] { return static_cast<float>(whole(random)); });
    add([&] { return static_cast<float>(whole(random)) * 0.5f; });
    add([&] { return normal(random) * (whole(random) == 8 ? 300.0f : 0.1f); });
    add([&] { return normal(random) * 1e-7f; });
  }
  add([] { return 0.0f; });
  add([] { return 1.5f; });
  add([] { return -1.5f; });
  return out;
}

BlockQ8_0 plain_q8_0(const float* x) {
  BlockQ8_0 block{};
  float amax = 0;
  for (int j = 0; j < 32; ++j) amax = std::max(amax, std::fabs(x[j]));
  const float d = amax / 127, id = d != 0 ? 1 / d : 0;
  block.d = f32_to_f16(d);
  for (int j = 0; j < 32; ++j) block.q[j] = static_cast<int8_t>(std::round(x[j] * id));
  return block;
}

BlockQ4_0 plain_q4_0(const float* x) {
  BlockQ4_0 block{};
  float amax = 0, extreme = 0;
  for (int j = 0; j < 32; ++j) {
    if (std::fabs(x[j]) > amax) amax = std::fabs(x[j]), extreme = x[j];
  }
  const float d = extreme / -8, id = d != 0 ? 1 / d : 0;
  block.d = f32_to_f16(d);
  for (int j = 0; j < 16; ++j) {
    const int low = std::min(15, static_cast<int>(x[j] * id + 8.5f));
    const int high = std::min(15, static_cast<int>(x[j + 16] * id + 8.5f));
    block.q[j] = static_cast<uint8_t>(low + 16 * high);
  }
  return block;
}

BlockQ4_1 plain_q4_1(const float* x) {
  BlockQ4_1 block{};
  float min = x[0], max = x[0];
  for (int j = 0; j < 32; ++j) min = std::min(min, x[j]), max = std::max(max, x[j]);
  const float d = (max - min) / 15, id = d != 0 ? 1 / d : 0;
  block.d = f32_to_f16(d);
  block.m = f32_to_f16(min);
  for (int j = 0; j < 16; ++j) {
    const int low = std::min(15, static_cast<int>((x[j] - min) * id + 0.5f));
    const int high = std::min(15, static_cast<int>((x[j + 16] - min) * id + 0.5f));
    block.q[j] = static_cast<uint8_t>(low + 16 * high);
  }
  return block;
}

template <typename Block, typename Plain>
void expect_plain(DType type, Plain plain) {
  for (const std::vector<float>& row : rows()) {
    const std::vector<uint8_t> bytes = stored(type, row);
    for (size_t b = 0; b < row.size() / 32; ++b) {
      const Block expected = plain(row.data() + 32 * b);
      ASSERT_EQ(std::memcmp(bytes.data() + b * sizeof(Block), &expected, sizeof(Block)), 0)
          << dtype_name(type) << " row that begins " << row[0] << ", block " << b;
    }
  }
}

TEST(QuantizeRow, BlocksAreTheFormula) {
  expect_plain<BlockQ8_0>(DType::kQ8_0, plain_q8_0);
  expect_plain<BlockQ4_0>(DType::kQ4_0, plain_q4_0);
  expect_plain<BlockQ4_1>(DType::kQ4_1, plain_q4_1);
}

// |x − x'| ≤ half a step, and what the halves of d and m lose (2⁻¹¹ of them, or 2⁻²⁵ where they are
// subnormal), times the largest q.
TEST(QuantizeRow, WhatComesBackIsWithinHalfAStep) {
  struct Bound {
    DType type;
    double steps, largest_q;  // steps of the widest block's range
  };
  for (const Bound& bound : {Bound{DType::kQ8_0, 254, 127}, Bound{DType::kQ4_1, 15, 15}}) {
    for (const std::vector<float>& row : rows()) {
      const std::vector<float> back = round_trip(bound.type, row);
      for (size_t b = 0; b < row.size(); b += 32) {
        const auto [low, high] = std::minmax_element(row.begin() + static_cast<long>(b),
                                                     row.begin() + static_cast<long>(b + 32));
        const double amax = std::max(std::fabs(*low), std::fabs(*high));
        const double d = (bound.type == DType::kQ8_0 ? 2 * amax : *high - *low) / bound.steps;
        const double lost = std::max(d * 0x1p-11, 0x1p-25) * bound.largest_q +
                            std::max(amax * 0x1p-11, 0x1p-25) + amax * 1e-6;
        for (size_t i = b; i < b + 32; ++i) {
          ASSERT_LE(std::fabs(row[i] - back[i]), d / 2 + lost) << dtype_name(bound.type) << i;
        }
      }
    }
  }
}

// Q4_0 has eight steps on one side and seven on the other: what lies past the seventh is cut there.
TEST(QuantizeRow, Q4_0IsWithinHalfAStepOrCut) {
  for (const std::vector<float>& row : rows()) {
    const std::vector<float> back = round_trip(DType::kQ4_0, row);
    for (size_t b = 0; b < row.size(); b += 32) {
      float amax = 0;
      for (size_t i = b; i < b + 32; ++i) amax = std::max(amax, std::fabs(row[i]));
      const double d = amax / 8.0, lost = std::max(d * 0x1p-11, 0x1p-25) * 8 + amax * 1e-6;
      for (size_t i = b; i < b + 32; ++i) {
        const bool cut = std::fabs(row[i]) > 7.5 * d;
        ASSERT_LE(std::fabs(row[i] - back[i]), (cut ? d : d / 2) + lost) << i;
      }
    }
  }
}

TEST(QuantizeRow, PlainTypesAreRoundedToNearest) {
  const std::vector<float> x = {0.1f, -2.5f, 65504, 1e-8f, 3.14159f, -0.0f, 7};
  EXPECT_EQ(round_trip(DType::kF32, x), x);
  const std::vector<float> half = round_trip(DType::kF16, x), brain = round_trip(DType::kBF16, x);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(half[i], f16_to_f32(f32_to_f16(x[i]))) << i;
    EXPECT_EQ(brain[i], bf16_to_f32(f32_to_bf16(x[i]))) << i;
  }
}

TEST(QuantizeRow, EveryTypeThatIsWrittenIsRead) {
  for (const DType type : row_types()) {
    EXPECT_TRUE(is_row_type(type));
    EXPECT_EQ(dtype_of_gguf(gguf_tensor_type(type)), type) << dtype_name(type);
  }
  EXPECT_FALSE(is_row_type(DType::kI32));
  EXPECT_EQ(row_types().size(), 16u);
}

}  // namespace
}  // namespace cutaway::formats
