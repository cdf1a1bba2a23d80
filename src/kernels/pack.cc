#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/blocks.h"
#include "kernels/layout.h"
#include "kernels/super_blocks.h"

namespace cutaway::kernels {
namespace {

bool finite_f16(uint16_t bits) noexcept { return (bits & 0x7C00u) != 0x7C00u; }
bool finite_bf16(uint16_t bits) noexcept { return (bits & 0x7F80u) != 0x7F80u; }
bool finite_f32(uint32_t bits) noexcept { return (bits & 0x7F800000u) != 0x7F800000u; }

template <typename T>
T load(const uint8_t* bytes, int64_t index) noexcept {
  T value;
  std::memcpy(&value, bytes + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Each pack_row writes row r (0 … 15) of one group, whose padding rows the caller zeroes, and
// returns whether all its scales (or values) are finite.

// Q4_0 and Q4_1 keep elements j and j + 16 in byte j, and so do the interleaved nibbles.
void spread_nibbles(const uint8_t (&from)[16], int64_t r, uint8_t (&to)[4][4 * kGroupRows]) {
  for (int64_t j = 0; j < 4; ++j) std::memcpy(&to[j][4 * r], &from[4 * j], 4);
}

bool pack_row_q4_1(const uint8_t* row, int64_t cols, int64_t r, uint8_t* group) noexcept {
  bool finite = true;
  for (int64_t b = 0; b < cols / kBlockK; ++b) {
    const auto from = load<BlockQ4_1>(row, b);
    auto& to = reinterpret_cast<NibbleMinBlock*>(group)[b];
    to.d[r] = from.d;
    to.m[r] = from.m;
    spread_nibbles(from.q, r, to.q);
    finite &= finite_f16(from.d) && finite_f16(from.m);
  }
  return finite;
}

bool pack_row_q4_0(const uint8_t* row, int64_t cols, int64_t r, uint8_t* group) noexcept {
  bool finite = true;
  for (int64_t b = 0; b < cols / kBlockK; ++b) {
    const auto from = load<BlockQ4_0>(row, b);
    auto& to = reinterpret_cast<NibbleBlock*>(group)[b];
    to.d[r] = from.d;
    spread_nibbles(from.q, r, to.q);
    finite &= finite_f16(from.d);
  }
  return finite;
}

// Bit i of a block's fifth bits to where the interleaved ones have it.
void spread_fifth_bits(const uint8_t (&from)[4], int64_t r, uint8_t (&to)[4 * kGroupRows]) {
  uint32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  for (int64_t i = 0; i < 4; ++i) {
    uint32_t byte = 0;
    for (int64_t j = 0; j < 8; ++j) byte |= (bits >> (4 * j + i) & 1u) << j;
    to[4 * r + i] = static_cast<uint8_t>(byte);
  }
}

bool pack_row_q5_1(const uint8_t* row, int64_t cols, int64_t r, uint8_t* group) noexcept {
  bool finite = true;
  for (int64_t b = 0; b < cols / kBlockK; ++b) {
    const auto from = load<BlockQ5_1>(row, b);
    auto& to = reinterpret_cast<FiveMinBlock*>(group)[b];
    to.d[r] = from.d;
    to.m[r] = from.m;
    spread_nibbles(from.q, r, to.q);
    spread_fifth_bits(from.qh, r, to.fifth);
    finite &= finite_f16(from.d) && finite_f16(from.m);
  }
  return finite;
}

bool pack_row_q5_0(const uint8_t* row, int64_t cols, int64_t r, uint8_t* group) noexcept {
  bool finite = true;
  for (int64_t b = 0; b < cols / kBlockK; ++b) {
    const auto from = load<BlockQ5_0>(row, b);
    auto& to = reinterpret_cast<FiveBlock*>(group)[b];
    to.d[r] = from.d;
    spread_nibbles(from.q, r, to.q);
    spread_fifth_bits(from.qh, r, to.fifth);
    finite &= finite_f16(from.d);
  }
  return finite;
}

bool pack_row_iq4_nl(const uint8_t* row, int64_t cols, int64_t r, uint8_t* group) noexcept {
  bool finite = true;
  for (int64_t b = 0; b < cols / kBlockK; ++b) {
    const auto from = load<BlockIQ4_NL>(row, b);
    auto& to = reinterpret_cast<NonlinearBlock*>(group)[b];
    to.d[r] = from.d;
    spread_nibbles(from.q, r, to.q);
    finite &= finite_f16(from.d);
  }
  return finite;
}

bool pack_row_mxfp4(const uint8_t* row, int64_t cols, int64_t r, uint8_t* group) noexcept {
  constexpr uint8_t kLastFinite = 252;  // 2^(252 − 128) · 12 < 2^128; 255 is the NaN of E8M0
  bool finite = true;
  for (int64_t b = 0; b < cols / kBlockK; ++b) {
    const auto from = load<BlockMXFP4>(row, b);
    auto& to = reinterpret_cast<MicroBlock*>(group)[b];
    to.e[r] = from.e;
    spread_nibbles(from.q, r, to.q);
    finite &= from.e <= kLastFinite;
  }
  return finite;
}

bool pack_row_q8_0(const uint8_t* row, int64_t cols, int64_t r, uint8_t* group) noexcept {
  bool finite = true;
  for (int64_t b = 0; b < cols / kBlockK; ++b) {
    const auto from = load<BlockQ8_0>(row, b);
    auto& to = reinterpret_cast<ByteBlock*>(group)[b];
    to.d[r] = from.d;
    for (int64_t j = 0; j < kBlockK / 4; ++j) std::memcpy(&to.q[j][4 * r], &from.q[4 * j], 4);
    finite &= finite_f16(from.d);
  }
  return finite;
}

// Bits are moved as they are; `is_finite` looks at the same bits.
template <typename Bits>
bool pack_row_plain(const uint8_t* row, int64_t cols, int64_t r, uint8_t* group,
                    bool (*is_finite)(Bits) noexcept) noexcept {
  bool finite = true;
  for (int64_t k = 0; k < cols; ++k) {
    const auto bits = load<Bits>(row, k);
    std::memcpy(group + (k * kGroupRows + r) * static_cast<int64_t>(sizeof(Bits)), &bits,
                sizeof(Bits));
    finite &= is_finite(bits);
  }
  return finite;
}

bool pack_row(const uint8_t* row, DType type, int64_t cols, int64_t r, uint8_t* group) noexcept {
  switch (type) {
    case DType::kQ4_1:
      return pack_row_q4_1(row, cols, r, group);
    case DType::kQ4_0:
      return pack_row_q4_0(row, cols, r, group);
    case DType::kQ8_0:
      return pack_row_q8_0(row, cols, r, group);
    case DType::kQ5_1:
      return pack_row_q5_1(row, cols, r, group);
    case DType::kQ5_0:
      return pack_row_q5_0(row, cols, r, group);
    case DType::kIQ4_NL:
      return pack_row_iq4_nl(row, cols, r, group);
    case DType::kMXFP4:
      return pack_row_mxfp4(row, cols, r, group);
    case DType::kF16:
      return pack_row_plain<uint16_t>(row, cols, r, group, finite_f16);
    case DType::kBF16:
      return pack_row_plain<uint16_t>(row, cols, r, group, finite_bf16);
    case DType::kF32:
      return pack_row_plain<uint32_t>(row, cols, r, group, finite_f32);
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kIQ4_XS:
      return pack_super_row(row, type, cols, r, group);
    default:
      break;
  }
  CUTAWAY_CHECK(!layout_of(type).has_value());  // group_bytes(layout_for(type)) came before
  return false;
}

}  // namespace

int64_t pack_groups(std::span<const uint8_t> stored, DType type, int64_t rows, int64_t cols,
                    std::span<const int32_t> row_order, int64_t group_begin, int64_t group_end,
                    uint8_t* out, int64_t first_row) noexcept {
  const size_t row_bytes = dtype_bytes(type, static_cast<size_t>(cols));
  const size_t packed_bytes = group_bytes(layout_for(type), cols);
  CUTAWAY_CHECK(stored.size() % row_bytes == 0);
  const int64_t end_row = first_row + static_cast<int64_t>(stored.size() / row_bytes);
  CUTAWAY_CHECK(row_order.empty() || row_order.size() == static_cast<size_t>(rows));
  CUTAWAY_CHECK(group_begin >= 0 && group_end <= (rows + kGroupRows - 1) / kGroupRows);
  int64_t first_bad = -1;
  for (int64_t g = group_begin; g < group_end; ++g) {
    uint8_t* group = out + static_cast<size_t>(g) * packed_bytes;
    const int64_t rows_here = std::min(kGroupRows, rows - g * kGroupRows);
    if (rows_here < kGroupRows) std::memset(group, 0, packed_bytes);
    for (int64_t r = 0; r < rows_here; ++r) {
      const int64_t packed = g * kGroupRows + r;
      const int64_t source = row_order.empty() ? packed : row_order[static_cast<size_t>(packed)];
      CUTAWAY_CHECK(source >= first_row && source < end_row);
      const uint8_t* row = stored.data() + static_cast<size_t>(source - first_row) * row_bytes;
      if (!pack_row(row, type, cols, r, group) && first_bad < 0) first_bad = packed;
    }
  }
  return first_bad;
}

}  // namespace cutaway::kernels
