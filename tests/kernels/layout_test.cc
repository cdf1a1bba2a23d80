#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/kernels/kernels_testing.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "base/cpu_features.h"
#endif

namespace cutaway::kernels {
namespace {

std::vector<int64_t> depths(DType type) {
  const int64_t step = testing::step_of_k(type);
  if (step == 256) return {256, 768, 2304};
  if (step > 1) return {32, 96, 576};
  return {1, 7, 33, 576};
}

TEST(Layout, PackedRowsUnpackToExactlyTheDequantisedValues) {
  std::mt19937 random(1);
  for (const DType type : testing::kWeightTypes) {
    for (const int64_t rows : {1, 15, 16, 17, 50}) {
      for (const int64_t cols : depths(type)) {
        const std::vector<uint8_t> stored = testing::random_weights(type, rows, cols, random);
        std::vector<int32_t> order(static_cast<size_t>(rows));
        std::iota(order.begin(), order.end(), 0);
        for (const bool permuted : {false, true}) {
          if (permuted) std::shuffle(order.begin(), order.end(), random);
          const testing::Packed packed = testing::pack(
              stored, type, rows, cols,
              permuted ? std::span<const int32_t>(order) : std::span<const int32_t>());
          EXPECT_EQ(packed.matrix.layout, layout_for(type));
          std::vector<float> all(static_cast<size_t>(rows * cols));
          dequantize(type, stored.data(), rows * cols, all.data());
          std::vector<float> row(static_cast<size_t>(cols));
          for (int64_t r = 0; r < rows; ++r) {
            unpack_row(packed.matrix, r, row.data());
            const float* expected = all.data() + order[static_cast<size_t>(r)] * cols;
            ASSERT_EQ(std::memcmp(row.data(), expected, row.size() * sizeof(float)), 0)
                << dtype_name(type) << " rows " << rows << " K " << cols << " row " << r;
          }
        }
      }
    }
  }
}

// Values computed by hand from the format's own definition.
TEST(Layout, DequantisesTheKnownBlocks) {
  BlockQ4_1 q4_1{f32_to_f16(0.5f), f32_to_f16(-2.0f), {}};
  BlockQ4_0 q4_0{f32_to_f16(-0.25f), {}};
  for (int i = 0; i < 16; ++i) {
    q4_1.q[i] = static_cast<uint8_t>(i | (15 - i) << 4);
    q4_0.q[i] = q4_1.q[i];
  }
  BlockQ8_0 q8{f32_to_f16(2.0f), {}};
  for (int i = 0; i < 32; ++i) q8.q[i] = static_cast<int8_t>(i * 8 - 128);
  float out[32];
  dequantize(DType::kQ4_1, reinterpret_cast<const uint8_t*>(&q4_1), 32, out);
  EXPECT_EQ(out[0], -2.0f);
  EXPECT_EQ(out[3], -0.5f);
  EXPECT_EQ(out[16], 5.5f);
  EXPECT_EQ(out[31], -2.0f);
  dequantize(DType::kQ4_0, reinterpret_cast<const uint8_t*>(&q4_0), 32, out);
  EXPECT_EQ(out[0], 2.0f);
  EXPECT_EQ(out[10], -0.5f);
  EXPECT_EQ(out[16], -1.75f);
  dequantize(DType::kQ8_0, reinterpret_cast<const uint8_t*>(&q8), 32, out);
  EXPECT_EQ(out[0], -256.0f);
  EXPECT_EQ(out[31], 240.0f);
}

// Blocks of the largest and of the least exponents are packed and come back.
TEST(Layout, MicroscaledExponentsAreExactFromTheLeastToTheLast) {
  std::mt19937 random(4);
  for (int e = 0; e <= 252; ++e) {
    std::vector<uint8_t> stored = testing::random_weights(DType::kMXFP4, 16, 32, random);
    for (size_t at = 0; at < stored.size(); at += 17) stored[at] = static_cast<uint8_t>(e);
    const testing::Packed packed = testing::pack(stored, DType::kMXFP4, 16, 32);
    for (const KernelTable* table : testing::runnable_tables()) {
      // One activation of 1 picks a weight.
      for (const int64_t k : {0, 5, 31}) {
        std::vector<float> x(32), y(16);
        x[static_cast<size_t>(k)] = 1;
        table->matmul_f32[static_cast<size_t>(packed.matrix.layout)](packed.matrix, 0, 1, x.data(),
                                                                     32, 1, y.data(), 16);
        for (int64_t r = 0; r < 16; ++r) {
          const int q = stored[static_cast<size_t>(17 * r + 1 + k % 16)] >> (k / 16 * 4) & 15;
          const double expected = std::ldexp(kMXFP4Values[q], e - 128);
          ASSERT_EQ(static_cast<double>(y[static_cast<size_t>(r)]), expected)
              << table->name << " e " << e << " K " << k << " row " << r;
        }
      }
    }
  }
}

TEST(Layout, AnyDivisionOfTheGroupsPacksTheSameBytes) {
  std::mt19937 random(2);
  for (const DType type : testing::kWeightTypes) {
    const int64_t cols = 3 * std::max<int64_t>(32, testing::step_of_k(type));
    const std::vector<uint8_t> stored = testing::random_weights(type, 77, cols, random);
    const testing::Packed whole = testing::pack(stored, type, 77, cols);
    const size_t bytes = whole.matrix.bytes();
    std::vector<uint8_t> parts(bytes + 64, 0x5A);
    for (int64_t g = whole.matrix.groups() - 1; g >= 0; --g) {
      ASSERT_EQ(pack_groups(stored, type, 77, cols, {}, g, g + 1, parts.data()), -1);
    }
    EXPECT_EQ(std::memcmp(parts.data(), whole.matrix.data, bytes), 0) << dtype_name(type);
    for (size_t i = bytes; i < parts.size(); ++i) ASSERT_EQ(parts[i], 0x5A);
  }
}

TEST(Layout, TheFirstRowThatIsNotFiniteIsNamed) {
  std::mt19937 random(3);
  struct Bad {
    DType type;
    size_t offset;  // of the value that is spoiled, within its row
    std::vector<uint8_t> bytes;
  };
  const Bad cases[] = {{DType::kQ4_1, 20, {0x00, 0x7C}},                 // d of block 1 is +inf
                       {DType::kQ4_1, 42, {0x00, 0xFC}},                 // m of block 2 is −inf
                       {DType::kQ4_0, 0, {0x01, 0x7E}},                  // d is NaN
                       {DType::kQ8_0, 34, {0xFF, 0xFF}},                 // d of block 1 is NaN
                       {DType::kQ5_0, 44, {0x00, 0xFC}},                 // d of block 2 is −inf
                       {DType::kQ5_1, 2, {0x01, 0x7C}},                  // m is NaN
                       {DType::kIQ4_NL, 18, {0x00, 0x7C}},               // d of block 1 is +inf
                       {DType::kMXFP4, 34, {0xFF}},                      // NaN of E8M0
                       {DType::kMXFP4, 0, {253}},                        // 2^125 · 12 is too large
                       {DType::kF16, 2 * 95, {0x00, 0x7C}},              // the last value
                       {DType::kBF16, 2 * 5, {0xC0, 0x7F}},              // NaN
                       {DType::kF32, 4 * 50, {0x00, 0x00, 0x80, 0xFF}},  // −inf
                       {DType::kQ2_K, 84 + 80, {0x00, 0x7C}},            // d of block 1
                       {DType::kQ2_K, 2 * 84 + 82, {0x00, 0xFC}},        // dmin of block 2
                       {DType::kQ3_K, 108, {0x01, 0x7C}},                // d of block 0
                       {DType::kQ4_K, 144, {0x00, 0x7C}},                // d of block 1
                       {DType::kQ4_K, 2 * 144 + 2, {0x00, 0x7E}},        // dmin of block 2
                       {DType::kQ5_K, 0, {0x00, 0xFC}},                  // d of block 0
                       {DType::kQ5_K, 176 + 2, {0xFF, 0x7F}},            // dmin of block 1
                       {DType::kQ6_K, 2 * 210 + 208, {0x00, 0x7C}},      // d of block 2
                       {DType::kIQ4_XS, 136, {0x00, 0x7C}}};             // d of block 1
  for (const Bad& bad : cases) {
    const int64_t cols = 3 * std::max<int64_t>(32, testing::step_of_k(bad.type));
    std::vector<uint8_t> stored = testing::random_weights(bad.type, 40, cols, random);
    const size_t row_bytes = dtype_bytes(bad.type, static_cast<size_t>(cols));
    for (const size_t row : {size_t{35}, size_t{21}}) {  // two: the first of them is named
      std::copy(bad.bytes.begin(), bad.bytes.end(),
                stored.begin() + static_cast<int64_t>(row * row_bytes + bad.offset));
    }
    std::vector<uint8_t> out(3 * group_bytes(layout_for(bad.type), cols));
    EXPECT_EQ(pack_groups(stored, bad.type, 40, cols, {}, 0, 3, out.data()), 21)
        << dtype_name(bad.type);
    EXPECT_EQ(pack_groups(stored, bad.type, 40, cols, {}, 2, 3, out.data()), 35);
    EXPECT_EQ(pack_groups(stored, bad.type, 40, cols, {}, 0, 1, out.data()), -1);
    // With an order, it is the packed row that is named: stored row 21 goes to packed row 18.
    std::vector<int32_t> order(40);
    for (int i = 0; i < 40; ++i) order[static_cast<size_t>(i)] = 39 - i;
    EXPECT_EQ(pack_groups(stored, bad.type, 40, cols, order, 0, 3, out.data()), 4);
  }
}

bool is_nan16(uint16_t bits) { return (bits & 0x7C00) == 0x7C00 && (bits & 0x3FF) != 0; }

TEST(Half, Every16BitValueComesBack) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const uint16_t quiet = is_nan16(bits) ? static_cast<uint16_t>(bits | 0x200) : bits;
    ASSERT_EQ(f32_to_f16(f16_to_f32(bits)), quiet) << i;
    const bool brain_nan = (bits & 0x7F80) == 0x7F80 && (bits & 0x7F) != 0;
    const uint16_t quiet_brain = brain_nan ? static_cast<uint16_t>(bits | 0x40) : bits;
    ASSERT_EQ(f32_to_bf16(bf16_to_f32(bits)), quiet_brain) << i;
    if (!is_nan16(bits)) {
      const int exponent = bits >> 10 & 31;
      const double magnitude = exponent == 31  ? std::numeric_limits<double>::infinity()
                               : exponent == 0 ? std::ldexp(bits & 1023, -24)
                                               : std::ldexp(1024 + (bits & 1023), exponent - 25);
      ASSERT_EQ(static_cast<double>(f16_to_f32(bits)), bits & 0x8000 ? -magnitude : magnitude);
    }
  }
}

// Around every point where rounding to f16 changes: the midpoint of two neighbours and one step of
// f32 to either side.
TEST(Half, RoundsToNearestEvenAtEveryMidpoint) {
  for (uint16_t bits = 0; bits < 0x7C00; ++bits) {
    const float low = f16_to_f32(bits);
    // Above the largest finite half the next step would be 2^16.
    const float high = bits == 0x7BFF ? 65536.0f : f16_to_f32(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    const auto up = static_cast<uint16_t>(bits + 1);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(f32_to_f16(middle), bits % 2 == 0 ? bits : up);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 1e9f)), up);
    ASSERT_EQ(f32_to_f16(-middle), 0x8000 | (bits % 2 == 0 ? bits : up));
  }
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) float hardware_f32(uint16_t bits) { return _cvtsh_ss(bits); }
__attribute__((target("f16c"))) uint16_t hardware_f16(float value) {
  return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
}

TEST(Half, HardwareConversionsGiveTheSameBits) {
  if (!cpu_features().f16c) GTEST_SKIP() << "this processor has no F16C";
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    ASSERT_TRUE(testing::same_bits(f16_to_f32(bits), hardware_f32(bits))) << i;
  }
  // All f32 values whose exponent matters, by steps that reach every mantissa pattern class.
  for (uint64_t i = 0; i < 0x100000000u; i += 997) {
    const auto bits = static_cast<uint32_t>(i);
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    ASSERT_EQ(f32_to_f16(value), hardware_f16(value)) << std::hex << bits;
  }
}
#endif

}  // namespace
}  // namespace cutaway::kernels
