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

// Writes dtype_bytes(type, n) bytes at `out`. Preconditions: is_row_type(type); n is a multiple of
// the type's block; values are finite and small enough for the type (a block's scale is a half).
//   F32, F16, BF16   rounded to nearest even
//   Q8_0             d = amax / 127, q = round(x / d), halves away from zero
//   Q4_0             d = x₀ / −8 for the x₀ of greatest magnitude (the first of equal ones),
//                    q = ⌊x / d + 8.5⌋, at most 15
//   Q4_1             d = (max − min) / 15, m = min, q = ⌊(x − m) / d + 0.5⌋, at most 15
// 1/d is taken before d is rounded to a half. Bit-exact on every machine; noexcept, any thread.
void quantize_row(DType type, const float* values, int64_t n, uint8_t* out) noexcept;

}  // namespace cutaway::formats
