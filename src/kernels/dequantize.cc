// One decoding per stored type: what every layout, kernel and quantiser is compared with. Each
// value is rounded as in the ggml format's reference: f32 products and sums, in this order.
#include <cstring>

#include "base/check.h"
#include "kernels/dequantize.h"
#include "kernels/layout.h"

namespace cutaway::kernels {
namespace {

template <typename T>
T load(const uint8_t* bytes, int64_t index) noexcept {
  T value;  // stored tensors need not be aligned
  std::memcpy(&value, bytes + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Calls decode(block, out) for each block of `Elements` elements.
template <typename Block, int64_t Elements>
void each_block(const uint8_t* stored, int64_t elements, float* out,
                void (*decode)(const Block&, float*) noexcept) noexcept {
  for (int64_t b = 0; b < elements / Elements; ++b, out += Elements) {
    decode(load<Block>(stored, b), out);
  }
}

// Element i of 16 bytes that hold elements j (low nibble) and j + 16 (high nibble) in byte j.
int nibble(const uint8_t (&q)[16], int i) noexcept { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }
int high_bit(const uint8_t (&qh)[4], int i) noexcept { return qh[i / 8] >> (i % 8) & 1; }

void decode_q8_0(const BlockQ8_0& block, float* out) noexcept {
  const float d = f16_to_f32(block.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(block.q[i]);
}

void decode_q4_0(const BlockQ4_0& block, float* out) noexcept {
  const float d = f16_to_f32(block.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(block.q, i) - 8);
}

void decode_q4_1(const BlockQ4_1& block, float* out) noexcept {
  const float d = f16_to_f32(block.d), m = f16_to_f32(block.m);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(block.q, i)) + m;
}

void decode_q5_0(const BlockQ5_0& block, float* out) noexcept {
  const float d = f16_to_f32(block.d);
  for (int i = 0; i < 32; ++i) {
    const int q = nibble(block.q, i) | high_bit(block.qh, i) << 4;
    out[i] = d * static_cast<float>(q - 16);
  }
}

void decode_q5_1(const BlockQ5_1& block, float* out) noexcept {
  const float d = f16_to_f32(block.d), m = f16_to_f32(block.m);
  for (int i = 0; i < 32; ++i) {
    const int q = nibble(block.q, i) | high_bit(block.qh, i) << 4;
    out[i] = d * static_cast<float>(q) + m;
  }
}

void decode_iq4_nl(const BlockIQ4_NL& block, float* out) noexcept {
  const float d = f16_to_f32(block.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(kIQ4Values[nibble(block.q, i)]);
}

void decode_mxfp4(const BlockMXFP4& block, float* out) noexcept {
  const float d = e8m0_half_to_f32(block.e);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(kMXFP4Values[nibble(block.q, i)]);
}

}  // namespace

void dequantize(DType type, const uint8_t* stored, int64_t elements, float* out) noexcept {
  CUTAWAY_CHECK(elements % dtype_traits(type).block_elements == 0);
  switch (type) {
    case DType::kF32:
      for (int64_t i = 0; i < elements; ++i) out[i] = load<float>(stored, i);
      return;
    case DType::kF16:
      for (int64_t i = 0; i < elements; ++i) out[i] = f16_to_f32(load<uint16_t>(stored, i));
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < elements; ++i) out[i] = bf16_to_f32(load<uint16_t>(stored, i));
      return;
    case DType::kQ8_0:
      return each_block<BlockQ8_0, 32>(stored, elements, out, decode_q8_0);
    case DType::kQ4_0:
      return each_block<BlockQ4_0, 32>(stored, elements, out, decode_q4_0);
    case DType::kQ4_1:
      return each_block<BlockQ4_1, 32>(stored, elements, out, decode_q4_1);
    case DType::kQ5_0:
      return each_block<BlockQ5_0, 32>(stored, elements, out, decode_q5_0);
    case DType::kQ5_1:
      return each_block<BlockQ5_1, 32>(stored, elements, out, decode_q5_1);
    case DType::kIQ4_NL:
      return each_block<BlockIQ4_NL, 32>(stored, elements, out, decode_iq4_nl);
    case DType::kMXFP4:
      return each_block<BlockMXFP4, 32>(stored, elements, out, decode_mxfp4);
    case DType::kQ2_K:
      return each_block<BlockQ2_K, 256>(stored, elements, out, decode_q2_k);
    case DType::kQ3_K:
      return each_block<BlockQ3_K, 256>(stored, elements, out, decode_q3_k);
    case DType::kQ4_K:
      return each_block<BlockQ4_K, 256>(stored, elements, out, decode_q4_k);
    case DType::kQ5_K:
      return each_block<BlockQ5_K, 256>(stored, elements, out, decode_q5_k);
    case DType::kQ6_K:
      return each_block<BlockQ6_K, 256>(stored, elements, out, decode_q6_k);
    case DType::kIQ4_XS:
      return each_block<BlockIQ4_XS, 256>(stored, elements, out, decode_iq4_xs);
    case DType::kI32:
      break;
  }
  CUTAWAY_CHECK(type != DType::kI32);
}

}  // namespace cutaway::kernels
