#include "tensor/dtype.h"

#include <bit>
#include <iterator>

#include "base/check.h"

namespace cutaway {

const DTypeTraits& dtype_traits(DType type) noexcept {
  static constexpr DTypeTraits kTraits[] = {
      {"F32", 1, 4},
      {"F16", 1, 2},
      {"BF16", 1, 2},
      {"Q8_0", 32, 34},
      {"Q4_0", 32, 18},
      {"Q4_1", 32, 20},
      {"I32", 1, 4},
      {"Q5_0", 32, 22},
      {"Q5_1", 32, 24},
      {"Q2_K", 256, sizeof(BlockQ2_K)},
      {"Q3_K", 256, sizeof(BlockQ3_K)},
      {"Q4_K", 256, sizeof(BlockQ4_K)},
      {"Q5_K", 256, sizeof(BlockQ5_K)},
      {"Q6_K", 256, sizeof(BlockQ6_K)},
      {"IQ4_NL", 32, 18},
      {"IQ4_XS", 256, sizeof(BlockIQ4_XS)},
      {"MXFP4", 32, 17},
  };
  const auto index = static_cast<size_t>(type);
  CUTAWAY_CHECK(index < std::size(kTraits));
  return kTraits[index];
}

size_t dtype_bytes(DType type, size_t elements) noexcept {
  const DTypeTraits& traits = dtype_traits(type);
  const auto per_block = static_cast<size_t>(traits.block_elements);
  CUTAWAY_CHECK(elements % per_block == 0);
  return elements / per_block * static_cast<size_t>(traits.block_bytes);
}

float f16_to_f32(uint16_t bits) noexcept {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = bits >> 10 & 0x1Fu;
  uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 0x1F) {
    // A signalling NaN becomes quiet, as the hardware conversion does.
    const uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13 | quiet);
  }
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  if (mantissa == 0) return std::bit_cast<float>(sign);
  const int shift = std::countl_zero(mantissa) - 21;  // normalises a subnormal half
  mantissa = mantissa << shift & 0x3FFu;
  return std::bit_cast<float>(sign | static_cast<uint32_t>(113 - shift) << 23 | mantissa << 13);
}

uint16_t f32_to_f16(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {  // NaN: quiet, payload's top bits kept
    return static_cast<uint16_t>(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
  }
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds to infinity
  if (magnitude < 0x33000001u) return sign;                                    // rounds to zero
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
  const int drop = exponent >= -14 ? 13 : 13 + (-14 - exponent);
  const uint32_t half = 1u << (drop - 1);
  const uint32_t rest = mantissa & ((1u << drop) - 1);
  uint32_t rounded = mantissa >> drop;
  if (rest > half || (rest == half && (rounded & 1u))) ++rounded;
  // A carry out of the mantissa runs into the exponent, which is what rounding up means.
  if (exponent >= -14) rounded += static_cast<uint32_t>(exponent + 14) << 10;
  return static_cast<uint16_t>(sign | rounded);
}

float bf16_to_f32(uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

float e8m0_half_to_f32(uint8_t e) noexcept {
  const uint32_t exponent = e;
  return std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
}

uint16_t f32_to_bf16(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace cutaway
