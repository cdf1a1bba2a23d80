// Element types of stored tensors, and the quantised block layouts as files hold them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cutaway {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kI32,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
};

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
struct BlockQ5_0 {  // w = d · (q − 16); bit i of qh is bit 4 of element i, q as in Q4_0
  uint16_t d;
  uint8_t qh[4];
  uint8_t q[16];
};
struct BlockQ5_1 {  // w = d · q + m
  uint16_t d, m;
  uint8_t qh[4];
  uint8_t q[16];
};
struct BlockIQ4_NL {  // w = d · kIQ4Values[q], q as in Q4_0
  uint16_t d;
  uint8_t q[16];
};
struct BlockMXFP4 {  // w = e8m0_half_to_f32(e) · kMXFP4Values[q], q as in Q4_0
  uint8_t e;
  uint8_t q[16];
};
static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ8_0) == 34);
static_assert(sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockIQ4_NL) == 18 && sizeof(BlockMXFP4) == 17);

inline constexpr int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of FP4 E2M1 (OCP Microscaling Formats 1.0): the scale is halved instead.
inline constexpr int8_t kMXFP4Values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};
// 2^(e − 128): half of the scale that an E8M0 byte stands for. Exact, subnormals included. The NaN
// of E8M0 (255) gives 2^127, as in ggml.
float e8m0_half_to_f32(uint8_t e) noexcept;

// Blocks of 256 elements ("K"), in sub-blocks of 16 or 32 that have small integer scales.
// kernels/dequantize_k.cc reads each as the format defines it.
struct BlockQ2_K {  // w = d · (s & 15) · q − dmin · (s >> 4), s the scale byte of 16 elements
  uint8_t scales[16];
  uint8_t q[64];  // elements 128·h + 32·j + i: bits 2·j and 2·j + 1 of byte 32·h + i
  uint16_t d, dmin;
};
struct BlockQ3_K {     // w = d · (s − 32) · (q − 4 where the bit of hmask is clear)
  uint8_t hmask[32];   // element 32·j + i: bit j of byte i
  uint8_t q[64];       // as in Q2_K
  uint8_t scales[12];  // sixteen of 6 bits: low nibbles in bytes 0 … 7, high pairs in 8 … 11
  uint16_t d;
};
struct BlockQ4_K {  // w = d · s · q − dmin · m, s and m of 32 elements
  uint16_t d, dmin;
  uint8_t scales[12];  // eight s and eight m of 6 bits
  uint8_t q[128];      // element 64·h + i: low nibble of byte 32·h + i; 64·h + 32 + i: its high one
};
struct BlockQ5_K {  // the same with q of 5 bits
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t qh[32];  // element 32·j + i: bit j of byte i
  uint8_t q[128];
};
struct BlockQ6_K {  // w = d · s · (q − 32), s of 16 elements
  uint8_t ql[128];  // element 128·h + i: low nibble of byte 64·h + i; + 64: its high one, i < 64
  uint8_t qh[64];   // element 128·h + 32·j + i: bits 2·j and 2·j + 1 of byte 32·h + i
  int8_t scales[16];
  uint16_t d;
};
struct BlockIQ4_XS {  // w = d · (s − 32) · kIQ4Values[q], s of 32 elements
  uint16_t d;
  uint16_t scales_h;    // two high bits of each s
  uint8_t scales_l[4];  // four low ones
  uint8_t q[128];       // sub-block j: bytes 16·j …, as in Q4_0
};
static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210 && sizeof(BlockIQ4_XS) == 136);

}  // namespace cutaway
