// Element types of stored tensors, and the quantised block layouts as files hold them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cutaway {

enum class DType : uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kI32 };

struct DTypeTraits {
  const char* name;    // as people write it: "F32", "Q4_1"
  int block_elements;  // elements that share one block (1 for plain types)
  int block_bytes;     // bytes of a block in a file
};

const DTypeTraits& dtype_traits(DType type) noexcept;
inline const char* dtype_name(DType type) noexcept { return dtype_traits(type).name; }

// Bytes of `elements` consecutive elements; elements must be a multiple of block_elements.
size_t dtype_bytes(DType type, size_t elements) noexcept;

// IEEE half and bfloat16 conversions, round to nearest even, NaN kept. Bit-exact on every machine.
float f16_to_f32(uint16_t bits) noexcept;
uint16_t f32_to_f16(float value) noexcept;
float bf16_to_f32(uint16_t bits) noexcept;
uint16_t f32_to_bf16(float value) noexcept;

// Blocks of 32 elements along a row, little-endian, as GGUF stores them (source: the ggml format).
struct BlockQ4_0 {  // w = d · (q − 8); byte j holds element j (low nibble) and j + 16 (high nibble)
  uint16_t d;
  uint8_t q[16];
};
struct BlockQ4_1 {  // w = d · q + m
  uint16_t d, m;
  uint8_t q[16];
};
struct BlockQ8_0 {  // w = d · q
  uint16_t d;
  int8_t q[32];
};
static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ8_0) == 34);

}  // namespace cutaway
