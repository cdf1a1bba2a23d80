// How the blocks of 256 hold their numbers. Source: the ggml format.
#include "kernels/dequantize.h"

namespace cutaway::kernels {
namespace {

// Element i of two-bit numbers in four planes: each 128 elements are 32 bytes, 32 elements to a
// pair of bits.
int two_bits(const uint8_t* q, int i) noexcept {
  return q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

// Element i of one-bit numbers in eight planes of 32 elements.
int one_bit(const uint8_t (&q)[32], int i) noexcept { return q[i % 32] >> (i / 32) & 1; }

// Element i of nibbles: each 64 elements are 32 bytes, low nibbles first.
int nibble(const uint8_t (&q)[128], int i) noexcept {
  return q[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
}

}  // namespace

int q2_k_at(const BlockQ2_K& block, int i) noexcept { return two_bits(block.q, i); }

int q3_k_at(const BlockQ3_K& block, int i) noexcept {
  return two_bits(block.q, i) - (one_bit(block.hmask, i) ? 0 : 4);
}

int q3_k_scale(const BlockQ3_K& block, int s) noexcept {
  const int low = block.scales[s % 8] >> (s / 8 * 4) & 15;
  const int high = block.scales[8 + s % 4] >> (s / 4 * 2) & 3;
  return (low | high << 4) - 32;
}

int q4_k_at(const BlockQ4_K& block, int i) noexcept { return nibble(block.q, i); }

int q5_k_at(const BlockQ5_K& block, int i) noexcept {
  return nibble(block.q, i) | one_bit(block.qh, i) << 4;
}

int q6_k_at(const BlockQ6_K& block, int i) noexcept {
  const int low = block.ql[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
  return (low | two_bits(block.qh, i) << 4) - 32;
}

int iq4_xs_scale(const BlockIQ4_XS& block, int s) noexcept {
  const int low = block.scales_l[s / 2] >> (s % 2 * 4) & 15;
  return (low | (block.scales_h >> (2 * s) & 3) << 4) - 32;
}

// Sub-blocks 0 … 3 have six bits of a byte each (scales in bytes 0 … 3, minima in 4 … 7); 4 … 7
// have a nibble of bytes 8 … 11 and the two bits that those bytes left over.
ScaleMin k_scale_min(const uint8_t (&scales)[12], int s) noexcept {
  if (s < 4) return {scales[s] & 63, scales[s + 4] & 63};
  const int scale = (scales[s + 4] & 15) | scales[s - 4] >> 6 << 4;
  const int min = scales[s + 4] >> 4 | scales[s] >> 6 << 4;
  return {scale, min};
}

void decode_q2_k(const BlockQ2_K& block, float* out) noexcept {
  const float d = f16_to_f32(block.d), dmin = f16_to_f32(block.dmin);
  for (int i = 0; i < 256; ++i) {
    const int s = block.scales[i / 16];
    const float scale = d * static_cast<float>(s & 15), min = dmin * static_cast<float>(s >> 4);
    out[i] = scale * static_cast<float>(q2_k_at(block, i)) - min;
  }
}

void decode_q3_k(const BlockQ3_K& block, float* out) noexcept {
  const float d = f16_to_f32(block.d);
  for (int i = 0; i < 256; ++i) {
    const float scale = d * static_cast<float>(q3_k_scale(block, i / 16));
    out[i] = scale * static_cast<float>(q3_k_at(block, i));
  }
}

void decode_q4_k(const BlockQ4_K& block, float* out) noexcept {
  const float d = f16_to_f32(block.d), dmin = f16_to_f32(block.dmin);
  for (int i = 0; i < 256; ++i) {
    const ScaleMin s = k_scale_min(block.scales, i / 32);
    const float scale = d * static_cast<float>(s.scale), min = dmin * static_cast<float>(s.min);
    out[i] = scale * static_cast<float>(q4_k_at(block, i)) - min;
  }
}

void decode_q5_k(const BlockQ5_K& block, float* out) noexcept {
  const float d = f16_to_f32(block.d), dmin = f16_to_f32(block.dmin);
  for (int i = 0; i < 256; ++i) {
    const ScaleMin s = k_scale_min(block.scales, i / 32);
    const float scale = d * static_cast<float>(s.scale), min = dmin * static_cast<float>(s.min);
    out[i] = scale * static_cast<float>(q5_k_at(block, i)) - min;
  }
}

void decode_q6_k(const BlockQ6_K& block, float* out) noexcept {
  const float d = f16_to_f32(block.d);
  for (int i = 0; i < 256; ++i) {
    const float scale = d * static_cast<float>(block.scales[i / 16]);
    out[i] = scale * static_cast<float>(q6_k_at(block, i));
  }
}

void decode_iq4_xs(const BlockIQ4_XS& block, float* out) noexcept {
  const float d = f16_to_f32(block.d);
  for (int i = 0; i < 256; ++i) {
    const int j = i % 32;
    const uint8_t byte = block.q[i / 32 * 16 + j % 16];
    const float scale = d * static_cast<float>(iq4_xs_scale(block, i / 32));
    out[i] = scale * static_cast<float>(kIQ4Values[j < 16 ? byte & 15 : byte >> 4]);
  }
}

}  // namespace cutaway::kernels
