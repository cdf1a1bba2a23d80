#include <cstring>

#include "base/check.h"
#include "kernels/dequantize.h"
#include "kernels/super_blocks.h"

namespace cutaway::kernels {
namespace {

template <typename T>
T load(const uint8_t* bytes, int64_t index) noexcept {
  T value;
  std::memcpy(&value, bytes + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Elements of a block as unsigned integers q (what Super::kOffset is taken from), in K order.
// Written as loops over the bytes as they lie, which compilers turn into vector code.
void two_bits(const uint8_t* q, uint8_t* out) noexcept {
  for (int h = 0; h < 2; ++h) {
    for (int j = 0; j < 4; ++j) {
      for (int i = 0; i < 32; ++i) {
        out[128 * h + 32 * j + i] = static_cast<uint8_t>(q[32 * h + i] >> (2 * j) & 3);
      }
    }
  }
}
void nibbles(const uint8_t* q, uint8_t* out) noexcept {
  for (int h = 0; h < 4; ++h) {
    for (int i = 0; i < 32; ++i) {
      out[64 * h + i] = q[32 * h + i] & 15;
      out[64 * h + 32 + i] = static_cast<uint8_t>(q[32 * h + i] >> 4);
    }
  }
}
void add_bit(const uint8_t (&bits)[32], int value, uint8_t* out) noexcept {
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 32; ++i) {
      out[32 * j + i] = static_cast<uint8_t>(out[32 * j + i] | (bits[i] >> j & 1) * value);
    }
  }
}

void integers(const BlockQ2_K& block, uint8_t* out) noexcept { two_bits(block.q, out); }
void integers(const BlockQ3_K& block, uint8_t* out) noexcept {
  two_bits(block.q, out);
  add_bit(block.hmask, 4, out);
}
void integers(const BlockQ4_K& block, uint8_t* out) noexcept { nibbles(block.q, out); }
void integers(const BlockQ5_K& block, uint8_t* out) noexcept {
  nibbles(block.q, out);
  add_bit(block.qh, 16, out);
}
void integers(const BlockQ6_K& block, uint8_t* out) noexcept {
  two_bits(block.qh, out);
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < 64; ++i) {
      const uint8_t byte = block.ql[64 * h + i];
      uint8_t* low = out + 128 * h + i;
      low[0] = static_cast<uint8_t>(low[0] << 4 | (byte & 15));
      low[64] = static_cast<uint8_t>(low[64] << 4 | byte >> 4);
    }
  }
}
void integers(const BlockIQ4_XS& block, uint8_t* out) noexcept {
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 16; ++i) {
      out[32 * j + i] = block.q[16 * j + i] & 15;
      out[32 * j + 16 + i] = static_cast<uint8_t>(block.q[16 * j + i] >> 4);
    }
  }
}

// The four bytes at p, and their bits `mask` of each.
uint32_t four(const uint8_t* p, uint32_t mask) noexcept { return load<uint32_t>(p, 0) & mask; }
void put(uint32_t word, uint8_t* array, int64_t r) noexcept {
  std::memcpy(array + 4 * r, &word, sizeof(word));
}

constexpr uint32_t each(uint32_t byte) noexcept { return byte * 0x01010101u; }

// One row's 32 integers to their places in a part.
template <typename Super>
void put_part(const uint8_t* q, int64_t r, typename Super::Part& part) noexcept {
  constexpr bool kTwoBits = std::is_same_v<Super, Super2> || std::is_same_v<Super, Super3>;
  if constexpr (kTwoBits) {
    for (int h = 0; h < 2; ++h) {
      uint32_t word = 0;
      for (int s = 0; s < 4; ++s) word |= four(q + 16 * h + 4 * s, each(3)) << (2 * s);
      put(word, part.q[h], r);
    }
  } else {
    for (int j = 0; j < 4; ++j) {
      put(four(q + 4 * j, each(15)) | four(q + 16 + 4 * j, each(15)) << 4, part.q[j], r);
    }
  }
  if constexpr (std::is_same_v<Super, Super3> || std::is_same_v<Super, Super5>) {
    constexpr int kBit = kTwoBits ? 2 : 4;
    uint32_t word = 0;
    for (int s = 0; s < 8; ++s) word |= (four(q + 4 * s, each(1u << kBit)) >> kBit) << s;
    put(word, part.high, r);
  } else if constexpr (std::is_same_v<Super, Super6>) {
    for (int h = 0; h < 2; ++h) {
      uint32_t word = 0;
      for (int s = 0; s < 4; ++s) word |= (four(q + 16 * h + 4 * s, each(48)) >> 4) << (2 * s);
      put(word, part.high[h], r);
    }
  }
}

bool finite_f16(uint16_t bits) noexcept { return (bits & 0x7C00u) != 0x7C00u; }

// Scales and minima of one row; whether they are finite.
template <typename Block, typename Super>
bool put_scales(const Block& from, int64_t r, Super& to) noexcept {
  bool finite = finite_f16(from.d);
  if constexpr (Super::kMin) {
    finite &= finite_f16(from.dmin);
    to.d[r] = from.d;
    to.dmin[r] = from.dmin;
  } else {
    to.d[r] = f16_to_f32(from.d);
  }
  for (int s = 0; s < kParts * Super::kScales; ++s) {
    if constexpr (std::is_same_v<Block, BlockQ2_K>) {
      to.scale_min[s][r] = from.scales[s];
    } else if constexpr (std::is_same_v<Block, BlockQ3_K>) {
      to.scale[s][r] = static_cast<int8_t>(q3_k_scale(from, s));
    } else if constexpr (std::is_same_v<Block, BlockQ6_K>) {
      to.scale[s][r] = from.scales[s];
    } else if constexpr (std::is_same_v<Block, BlockIQ4_XS>) {
      to.scale[s][r] = static_cast<int8_t>(iq4_xs_scale(from, s));
    } else {
      const ScaleMin both = k_scale_min(from.scales, s);
      to.scale[s][r] = static_cast<uint8_t>(both.scale);
      to.min[s][r] = static_cast<uint8_t>(both.min);
    }
  }
  return finite;
}

template <typename Block, typename Super>
bool pack_row(const uint8_t* row, int64_t cols, int64_t r, uint8_t* group) noexcept {
  bool finite = true;
  for (int64_t b = 0; b < cols / kSuperK; ++b) {
    const auto from = load<Block>(row, b);
    auto& to = reinterpret_cast<Super*>(group)[b];
    finite &= put_scales(from, r, to);
    uint8_t q[kSuperK];
    integers(from, q);
    for (int64_t p = 0; p < kParts; ++p) put_part<Super>(q + p * kBlockK, r, to.part[p]);
  }
  return finite;
}

template <typename Super>
void unpack_row(const uint8_t* group, int64_t r, int64_t cols, float* out) noexcept {
  const auto* supers = reinterpret_cast<const Super*>(group);
  for (int64_t k = 0; k < cols; ++k) out[k] = weight_at(supers[k / kSuperK], r, k % kSuperK);
}

}  // namespace

bool pack_super_row(const uint8_t* row, DType type, int64_t cols, int64_t r,
                    uint8_t* group) noexcept {
  switch (type) {
    case DType::kQ2_K:
      return pack_row<BlockQ2_K, Super2>(row, cols, r, group);
    case DType::kQ3_K:
      return pack_row<BlockQ3_K, Super3>(row, cols, r, group);
    case DType::kQ4_K:
      return pack_row<BlockQ4_K, Super4>(row, cols, r, group);
    case DType::kQ5_K:
      return pack_row<BlockQ5_K, Super5>(row, cols, r, group);
    case DType::kQ6_K:
      return pack_row<BlockQ6_K, Super6>(row, cols, r, group);
    case DType::kIQ4_XS:
      return pack_row<BlockIQ4_XS, SuperCode>(row, cols, r, group);
    default:
      break;
  }
  CUTAWAY_CHECK(type == DType::kQ2_K);  // no other type has super-blocks
  return false;
}

void unpack_super_row(Layout layout, const uint8_t* group, int64_t r, int64_t cols,
                      float* out) noexcept {
  switch (layout) {
    case Layout::kSuper2:
      return unpack_row<Super2>(group, r, cols, out);
    case Layout::kSuper3:
      return unpack_row<Super3>(group, r, cols, out);
    case Layout::kSuper4:
      return unpack_row<Super4>(group, r, cols, out);
    case Layout::kSuper5:
      return unpack_row<Super5>(group, r, cols, out);
    case Layout::kSuper6:
      return unpack_row<Super6>(group, r, cols, out);
    case Layout::kSuperCode:
      return unpack_row<SuperCode>(group, r, cols, out);
    default:
      break;
  }
  CUTAWAY_CHECK(layout == Layout::kSuper2);
}

}  // namespace cutaway::kernels
