// Rows of f32 values to a tensor type's stored bytes: the plain conversion, each block by itself,
// without importance weights. Formulas: those of the ggml format's reference quantisers.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace cutaway::formats {

// The types that quantize_row writes, in the order in which people are shown them.
std::span<const DType> row_types() noexcept;
bool is_row_type(DType type) noexcept;

// What rows of `cols` elements can have in place of `type`: itself where its blocks divide them;
// else a type of blocks of 32 and about as many bits (Q2_K and Q3_K give Q4_0, Q4_K gives Q5_0,
// Q5_K gives Q5_1, Q6_K gives Q8_0, IQ4_XS gives IQ4_NL), or F16. As llama.cpp does it.
DType fitting_type(DType type, int64_t cols) noexcept;

// Writes dtype_bytes(type, n) bytes at `out`. Preconditions: is_row_type(type); n is a multiple of
// the type's block; values are finite and small enough for the type (a block's scale is a half).
//   F32, F16, BF16   rounded to nearest even
//   Q8_0             d = amax / 127, q = round(x / d), halves away from zero
//   Q4_0             d = x₀ / −8 for the x₀ of greatest magnitude (the first of equal ones),
//                    q = ⌊x / d + 8.5⌋, at most 15
//   Q4_1             d = (max − min) / 15, m = min, q = ⌊(x − m) / d + 0.5⌋, at most 15
//   the others       the largest value (of a sub-block) takes the last code
// 1/d is taken before d is rounded to a half. Bit-exact on every machine; noexcept, any thread.
void quantize_row(DType type, const float* values, int64_t n, uint8_t* out) noexcept;

}  // namespace cutaway::formats
