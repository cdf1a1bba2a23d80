#include "formats/quantize_row.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "formats/quantize_search.h"

// Inner loops run over eight lanes in plain arrays: compilers make vectors of them at -O2, and
// maxima and minima have the same value in any order.

namespace cutaway::formats {
namespace {

constexpr int kBlock = 32;
constexpr int kLanes = 8;

struct Range {
  float min, max;
};

Range range_of(const float* x) noexcept {
  float low[kLanes], high[kLanes];
  for (int j = 0; j < kLanes; ++j) low[j] = high[j] = x[j];
  for (int i = kLanes; i < kBlock; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      const float v = x[i + j];
      low[j] = v < low[j] ? v : low[j];
      high[j] = v > high[j] ? v : high[j];
    }
  }
  return {*std::min_element(low, low + kLanes), *std::max_element(high, high + kLanes)};
}

float greatest_magnitude(const float* x) noexcept {
  const Range range = range_of(x);
  return std::max(-range.min, range.max) + 0.0f;  // of a block of zeros: not −0
}

float inverse(float d) noexcept { return d != 0 ? 1 / d : 0; }

// Values 0 … 15, those of elements j and j + 16 in byte j.
void put_nibbles(const int32_t* q, uint8_t* out) noexcept {
  for (int j = 0; j < kBlock / 2; ++j) {
    out[j] = static_cast<uint8_t>(q[j] | q[j + kBlock / 2] << 4);
  }
}

void put_f32(const float* x, int64_t n, uint8_t* out) noexcept {
  std::memcpy(out, x, static_cast<size_t>(n) * sizeof *x);
}

void put_f16(const float* x, int64_t n, uint8_t* out) noexcept {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = f32_to_f16(x[i]);
    std::memcpy(out + 2 * i, &bits, 2);
  }
}

void put_bf16(const float* x, int64_t n, uint8_t* out) noexcept {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = f32_to_bf16(x[i]);
    std::memcpy(out + 2 * i, &bits, 2);
  }
}

void put_q8_0(const float* x, int64_t n, uint8_t* out) noexcept {
  for (int64_t b = 0; b < n / kBlock; ++b, x += kBlock, out += sizeof(BlockQ8_0)) {
    BlockQ8_0 block;
    const float d = greatest_magnitude(x) / 127;
    const float id = inverse(d);
    block.d = f32_to_f16(d);
    for (int j = 0; j < kBlock; ++j) {
      const float scaled = x[j] * id;
      const auto whole = static_cast<int32_t>(scaled);
      const float rest = scaled - static_cast<float>(whole);  // exact
      block.q[j] = static_cast<int8_t>(whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0));
    }
    std::memcpy(out, &block, sizeof block);
  }
}

void put_q4_0(const float* x, int64_t n, uint8_t* out) noexcept {
  for (int64_t b = 0; b < n / kBlock; ++b, x += kBlock, out += sizeof(BlockQ4_0)) {
    BlockQ4_0 block;
    const Range range = range_of(x);
    float extreme = -range.min > range.max ? range.min : range.max;
    if (-range.min == range.max) {  // the first of the two
      extreme =
          *std::find_if(x, x + kBlock, [&](float v) { return v == range.min || v == range.max; });
    }
    const float d = extreme / -8;
    const float id = inverse(d);
    block.d = f32_to_f16(d);
    int32_t q[kBlock];
    for (int j = 0; j < kBlock; ++j) {
      q[j] = std::min(15, static_cast<int32_t>(x[j] * id + 8.5f));
    }
    put_nibbles(q, block.q);
    std::memcpy(out, &block, sizeof block);
  }
}

void put_q4_1(const float* x, int64_t n, uint8_t* out) noexcept {
  for (int64_t b = 0; b < n / kBlock; ++b, x += kBlock, out += sizeof(BlockQ4_1)) {
    BlockQ4_1 block;
    const Range range = range_of(x);
    const float d = (range.max - range.min) / 15;
    const float id = inverse(d);
    block.d = f32_to_f16(d);
    block.m = f32_to_f16(range.min);
    int32_t q[kBlock];
    for (int j = 0; j < kBlock; ++j) {
      const float steps = (x[j] - range.min) * id;              // ≥ 0
      q[j] = std::min(15, static_cast<int32_t>(steps + 0.5f));  // NOLINT: the format's rounding
    }
    put_nibbles(q, block.q);
    std::memcpy(out, &block, sizeof block);
  }
}

template <DType type>
void put_blocks(const float* x, int64_t n, uint8_t* out) noexcept {
  quantize_row_plain(type, x, n, out);
}

using PutRow = void (*)(const float* x, int64_t n, uint8_t* out) noexcept;

// A new type is one line in each of these two.
constexpr DType kTypes[] = {DType::kF32,    DType::kF16,   DType::kBF16, DType::kQ8_0,
                            DType::kQ6_K,   DType::kQ5_K,  DType::kQ5_1, DType::kQ5_0,
                            DType::kQ4_1,   DType::kQ4_0,  DType::kQ4_K, DType::kIQ4_NL,
                            DType::kIQ4_XS, DType::kMXFP4, DType::kQ3_K, DType::kQ2_K};
constexpr PutRow kPut[] = {put_f32,
                           put_f16,
                           put_bf16,
                           put_q8_0,
                           put_blocks<DType::kQ6_K>,
                           put_blocks<DType::kQ5_K>,
                           put_blocks<DType::kQ5_1>,
                           put_blocks<DType::kQ5_0>,
                           put_q4_1,
                           put_q4_0,
                           put_blocks<DType::kQ4_K>,
                           put_blocks<DType::kIQ4_NL>,
                           put_blocks<DType::kIQ4_XS>,
                           put_blocks<DType::kMXFP4>,
                           put_blocks<DType::kQ3_K>,
                           put_blocks<DType::kQ2_K>};
static_assert(std::size(kTypes) == std::size(kPut));

PutRow writer_of(DType type) noexcept {
  const auto* found = std::find(std::begin(kTypes), std::end(kTypes), type);
  return found == std::end(kTypes) ? nullptr : kPut[found - std::begin(kTypes)];
}

}  // namespace

std::span<const DType> row_types() noexcept { return kTypes; }

bool is_row_type(DType type) noexcept { return writer_of(type) != nullptr; }

DType fitting_type(DType type, int64_t cols) noexcept {
  const auto fits = [&](DType t) { return cols % dtype_traits(t).block_elements == 0; };
  if (fits(type)) return type;
  DType smaller = type;
  switch (type) {
    case DType::kQ2_K:
    case DType::kQ3_K:
      smaller = DType::kQ4_0;
      break;
    case DType::kQ4_K:
      smaller = DType::kQ5_0;
      break;
    case DType::kQ5_K:
      smaller = DType::kQ5_1;
      break;
    case DType::kQ6_K:
      smaller = DType::kQ8_0;
      break;
    case DType::kIQ4_XS:
      smaller = DType::kIQ4_NL;
      break;
    default:
      break;
  }
  return fits(smaller) ? smaller : DType::kF16;
}

void quantize_row(DType type, const float* values, int64_t n, uint8_t* out) noexcept {
  const PutRow put = writer_of(type);
  CUTAWAY_CHECK(put != nullptr && n >= 0 && n % dtype_traits(type).block_elements == 0);
  put(values, n, out);
}

}  // namespace cutaway::formats
