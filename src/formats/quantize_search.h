// Rows of f32 values to a quantised type's stored bytes, with the scales of least weighted squared
// error: what `quantize` writes. quantize_row.h is the plain conversion.
#pragma once

#include <cstdint>

#include "formats/quantize_lanes.h"
#include "tensor/dtype.h"

namespace cutaway::formats {

// Writes dtype_bytes(type, n) bytes at `out`. `importance`: n numbers ≥ 0, how much an error in
// each column counts (the mean square of the activations that it meets); null: every column
// alike, but for IQ4_NL and IQ4_XS, where each value counts by its magnitude, and for Q4_0, Q5_0,
// Q3_K and Q4_K: by √(mean² + x²), mean being that of the magnitudes of all n.
// For every type that quantize_row writes; F32, F16, BF16 and Q8_0 have no choice and are
// its. Preconditions: is_row_type(type); n is a multiple of the type's block; values and importance
// are finite, values at most largest_value(type). The same bytes on every machine, from any thread.
void quantize_row_searched(DType type, const float* values, const float* importance, int64_t n,
                           uint8_t* out) noexcept;
// The same through a given search (tests).
void quantize_row_searched(const LaneSearch& search, DType type, const float* values,
                           const float* importance, int64_t n, uint8_t* out) noexcept;
// Every block by itself, the largest value in the last code: the plain conversion of the types that
// quantize_row has no formula of its own for.
void quantize_row_plain(DType type, const float* values, int64_t n, uint8_t* out) noexcept;
// Whether the type's scales are searched.
bool is_searched_type(DType type) noexcept;

// The largest magnitude that a value may have.
float largest_value(DType type) noexcept;

}  // namespace cutaway::formats
