// The decoding of every stored type against PyPI gguf's (tools/make_dequantized.py), and blocks
// whose values follow from the format's definition by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "formats/gguf_types.h"
#include "kernels/layout.h"
#include "tests/golden/safetensors.h"

namespace cutaway::kernels {
namespace {

constexpr DType kTypes[] = {DType::kF16,   DType::kBF16, DType::kQ8_0,  DType::kQ4_0,
                            DType::kQ4_1,  DType::kQ5_0, DType::kQ5_1,  DType::kIQ4_NL,
                            DType::kMXFP4, DType::kQ2_K, DType::kQ3_K,  DType::kQ4_K,
                            DType::kQ5_K,  DType::kQ6_K, DType::kIQ4_XS};

// Bits, but for NaN, whose payload is no one's promise.
bool same_value(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

TEST(Dequantize, EveryTypeGivesTheBitsOfTheOracle) {
  const auto golden = cutaway::testing::read_safetensors(
      CUTAWAY_SOURCE_DIR "/tests/golden/dequantize/types.safetensors");
  ASSERT_EQ(golden.size(), 2 * std::size(kTypes));
  for (const DType type : kTypes) {
    const std::string name = dtype_name(type);
    const std::string& blocks = golden.at(name + ".blocks").bytes;
    const cutaway::testing::SafeTensor& values = golden.at(name + ".values");
    ASSERT_EQ(blocks.size(), dtype_bytes(type, values.elements())) << name;
    // One byte off any alignment, as in a file.
    std::string moved = " " + blocks;
    std::vector<float> out(values.elements());
    dequantize(type, reinterpret_cast<const uint8_t*>(moved.data()) + 1,
               static_cast<int64_t>(out.size()), out.data());
    std::set<float> finite;
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_TRUE(same_value(out[i], values.floats()[i]))
          << name << " element " << i << ": " << out[i] << ", expected " << values.floats()[i];
      if (std::isfinite(out[i])) finite.insert(out[i]);
    }
    EXPECT_GT(finite.size(), 100u) << name;
  }
}

// Every type that a file's directory may name is read, apart from integers.
TEST(Dequantize, EveryReadableTypeOfWeightsIsCovered) {
  for (uint32_t number = 0; number < 64; ++number) {
    const std::optional<DType> type = formats::dtype_of_gguf(number);
    if (!type || *type == DType::kI32 || *type == DType::kF32) continue;
    EXPECT_NE(std::find(std::begin(kTypes), std::end(kTypes), *type), std::end(kTypes))
        << dtype_name(*type);
    EXPECT_EQ(formats::gguf_tensor_type(*type), number);
    EXPECT_STREQ(formats::gguf_tensor_type_name(number), dtype_name(*type));
  }
}

template <typename Block, size_t N = 32>
std::array<float, N> decoded(DType type, const Block& block) {
  std::array<float, N> out;
  dequantize(type, reinterpret_cast<const uint8_t*>(&block), N, out.data());
  return out;
}

TEST(Dequantize, TheFifthBitOfEachElementIsItsOwn) {
  for (int i = 0; i < 32; ++i) {
    BlockQ5_0 q5_0{f32_to_f16(1.0f), {}, {}};
    q5_0.qh[i / 8] = static_cast<uint8_t>(1 << i % 8);
    BlockQ5_1 q5_1{f32_to_f16(0.5f), f32_to_f16(-3.0f), {}, {}};
    q5_1.qh[i / 8] = q5_0.qh[i / 8];
    const auto a = decoded<BlockQ5_0, 32>(DType::kQ5_0, q5_0);
    const auto b = decoded<BlockQ5_1, 32>(DType::kQ5_1, q5_1);
    for (int k = 0; k < 32; ++k) {
      ASSERT_EQ(a[static_cast<size_t>(k)], k == i ? 0.0f : -16.0f) << i << ' ' << k;
      ASSERT_EQ(b[static_cast<size_t>(k)], k == i ? 5.0f : -3.0f) << i << ' ' << k;
    }
  }
}

TEST(Dequantize, MicroscaledBlocksAtTheEndsOfTheirExponents) {
  BlockMXFP4 block{};
  for (int i = 0; i < 16; ++i) block.q[i] = static_cast<uint8_t>(i | 7 << 4);
  block.e = 0;  // 2^−127 · 6 and its like, subnormal and exact
  auto out = decoded<BlockMXFP4, 32>(DType::kMXFP4, block);
  EXPECT_EQ(out[1], std::ldexp(1.0f, -128));
  EXPECT_EQ(out[15], -std::ldexp(12.0f, -128));
  EXPECT_EQ(out[16], std::ldexp(12.0f, -128));
  block.e = 127;  // scale 1: the values of E2M1 themselves
  out = decoded<BlockMXFP4, 32>(DType::kMXFP4, block);
  const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(out[i], e2m1[i]) << i;
  block.e = 252;  // the last exponent of which every value is finite
  EXPECT_EQ(decoded<BlockMXFP4>(DType::kMXFP4, block)[16], std::ldexp(12.0f, 124));
  block.e = 253;
  EXPECT_TRUE(std::isinf(decoded<BlockMXFP4>(DType::kMXFP4, block)[16]));
}

TEST(Dequantize, SubBlocksTakeTheirOwnSixBitScales) {
  for (int s = 0; s < 8; ++s) {
    // Scale 33 and minimum 18 for sub-block s alone: low nibbles, and bits of both high pairs.
    BlockQ4_K block{f32_to_f16(1.0f), f32_to_f16(1.0f), {}, {}};
    if (s < 4) {
      block.scales[s] = 33;
      block.scales[s + 4] = 18;
    } else {
      block.scales[s + 4] = 33 % 16 | 18 % 16 << 4;
      block.scales[s - 4] = 33 / 16 << 6;
      block.scales[s] = 18 / 16 << 6;
    }
    for (uint8_t& q : block.q) q = 0x11;
    const auto out = decoded<BlockQ4_K, 256>(DType::kQ4_K, block);
    for (int i = 0; i < 256; ++i) {
      ASSERT_EQ(out[static_cast<size_t>(i)], i / 32 == s ? 33.0f - 18.0f : 0.0f) << s << ' ' << i;
    }
  }
  for (int s = 0; s < 16; ++s) {  // Q3_K: stored 63 is +31, the others' 0 is −32
    BlockQ3_K block{};
    block.d = f32_to_f16(1.0f);
    block.scales[s % 8] = static_cast<uint8_t>(15 << s / 8 * 4);
    block.scales[8 + s % 4] = static_cast<uint8_t>(3 << s / 4 * 2);
    for (uint8_t& q : block.hmask) q = 0xFF;
    for (uint8_t& q : block.q) q = 0x55;
    const auto out = decoded<BlockQ3_K, 256>(DType::kQ3_K, block);
    for (int i = 0; i < 256; ++i) {
      ASSERT_EQ(out[static_cast<size_t>(i)], i / 16 == s ? 31.0f : -32.0f) << s << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace cutaway::kernels
