// The decodings of the stored types whose blocks have 256 elements: out[0 … 256). Internal to
// kernels/; layout.h has dequantize().
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace cutaway::kernels {

void decode_q2_k(const BlockQ2_K& block, float* out) noexcept;
void decode_q3_k(const BlockQ3_K& block, float* out) noexcept;
void decode_q4_k(const BlockQ4_K& block, float* out) noexcept;
void decode_q5_k(const BlockQ5_K& block, float* out) noexcept;
void decode_q6_k(const BlockQ6_K& block, float* out) noexcept;
void decode_iq4_xs(const BlockIQ4_XS& block, float* out) noexcept;

// The integers of a block, each in one place: element or sub-block to number.
int q2_k_at(const BlockQ2_K& block, int i) noexcept;         // 0 … 3
int q3_k_at(const BlockQ3_K& block, int i) noexcept;         // −4 … 3
int q3_k_scale(const BlockQ3_K& block, int s) noexcept;      // −32 … 31, of 16 elements
int q4_k_at(const BlockQ4_K& block, int i) noexcept;         // 0 … 15
int q5_k_at(const BlockQ5_K& block, int i) noexcept;         // 0 … 31
int q6_k_at(const BlockQ6_K& block, int i) noexcept;         // −32 … 31
int iq4_xs_scale(const BlockIQ4_XS& block, int s) noexcept;  // −32 … 31, of 32 elements
// Scale and minimum (0 … 63) of sub-block s of 32 elements of Q4_K and Q5_K.
struct ScaleMin {
  int scale, min;
};
ScaleMin k_scale_min(const uint8_t (&scales)[12], int s) noexcept;

}  // namespace cutaway::kernels
