// The super-blocks of layout.h as structs: what one group of 16 rows holds per 256 K of the "K"
// types. Internal to kernels/.
//
// Eight parts of 32 K, each cut into eight steps of 4 K: byte 4·r + i of a 64-byte array belongs to
// row r's K element 4·step + i. An integer's low bits and its high ones lie apart:
//   nibbles     q[j]: step j in the low nibble, step 4 + j in the high one
//   pairs       q[h] or high[h]: step 4·h + s in bits 2·s and 2·s + 1
//   single bits high: step s in bit s
// Scales and minima are small integers per 16 or 32 K: D = d · scale, M = dmin · min are exact in
// f32, and so is D · q: 11 bits of d, at most 8 of a scale, 6 of q (128 and 32 are powers of two).
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/layout.h"

namespace cutaway::kernels {

inline constexpr int64_t kParts = kSuperK / kBlockK;
inline constexpr int64_t kLanes = 4 * kGroupRows;

// kScales: scales per part. kOffset: w = D · (q − kOffset) − M. kMin: whether there is an M.
struct Super4 {  // Q4_K
  static constexpr int kScales = 1, kOffset = 0;
  static constexpr bool kMin = true;
  struct Part {
    uint8_t q[4][kLanes];
  };
  uint16_t d[kGroupRows], dmin[kGroupRows];
  uint8_t scale[kParts][kGroupRows];
  uint8_t min[kParts][kGroupRows];
  Part part[kParts];
};

struct Super5 {  // Q5_K
  static constexpr int kScales = 1, kOffset = 0;
  static constexpr bool kMin = true;
  struct Part {
    uint8_t high[kLanes];  // single bits: bit 4 of q
    uint8_t q[4][kLanes];
  };
  uint16_t d[kGroupRows], dmin[kGroupRows];
  uint8_t scale[kParts][kGroupRows];
  uint8_t min[kParts][kGroupRows];
  Part part[kParts];
};

struct Super6 {  // Q6_K
  static constexpr int kScales = 2, kOffset = 32;
  static constexpr bool kMin = false;
  struct Part {
    uint8_t high[2][kLanes];  // pairs: bits 4 and 5 of q
    uint8_t q[4][kLanes];
  };
  float d[kGroupRows];
  int8_t scale[2 * kParts][kGroupRows];
  Part part[kParts];
};

struct Super3 {  // Q3_K
  static constexpr int kScales = 2, kOffset = 4;
  static constexpr bool kMin = false;
  struct Part {
    uint8_t high[kLanes];  // single bits: bit 2 of q
    uint8_t q[2][kLanes];  // pairs
  };
  float d[kGroupRows];
  int8_t scale[2 * kParts][kGroupRows];
  Part part[kParts];
};

struct Super2 {  // Q2_K
  static constexpr int kScales = 2, kOffset = 0;
  static constexpr bool kMin = true;
  struct Part {
    uint8_t q[2][kLanes];  // pairs
  };
  uint16_t d[kGroupRows], dmin[kGroupRows];
  uint8_t scale_min[2 * kParts][kGroupRows];  // the minimum in the high nibble
  Part part[kParts];
};

struct SuperCode {  // IQ4_XS: q = kOffset + kIQ4Values[nibble]
  static constexpr int kScales = 1, kOffset = 128;
  static constexpr bool kMin = false;
  struct Part {
    uint8_t q[4][kLanes];
  };
  float d[kGroupRows];
  int8_t scale[kParts][kGroupRows];
  Part part[kParts];
};

// Lines of 64 bytes throughout: a 64-byte array never lies across two.
static_assert(sizeof(Super4) == 37 * 64 && sizeof(Super5) == 45 * 64 && sizeof(Super6) == 53 * 64);
static_assert(sizeof(Super3) == 29 * 64 && sizeof(Super2) == 21 * 64 &&
              sizeof(SuperCode) == 35 * 64);

template <Layout layout>
struct SuperTypeOf;
template <>
struct SuperTypeOf<Layout::kSuper2> {
  using Type = Super2;
};
template <>
struct SuperTypeOf<Layout::kSuper3> {
  using Type = Super3;
};
template <>
struct SuperTypeOf<Layout::kSuper4> {
  using Type = Super4;
};
template <>
struct SuperTypeOf<Layout::kSuper5> {
  using Type = Super5;
};
template <>
struct SuperTypeOf<Layout::kSuper6> {
  using Type = Super6;
};
template <>
struct SuperTypeOf<Layout::kSuperCode> {
  using Type = SuperCode;
};
// The super-block of a layout that has one.
template <Layout layout>
using SuperOf = typename SuperTypeOf<layout>::Type;

template <typename T>
concept IsSuper = requires { typename T::Part; };

// The integer q − kOffset of row r's K element k (0 … 255).
template <IsSuper Super>
int integer_at(const Super& super, int64_t r, int64_t k) noexcept {
  const auto& part = super.part[k / kBlockK];
  const int64_t step = k % kBlockK / 4, byte = 4 * r + k % 4;
  int q;
  if constexpr (std::is_same_v<Super, Super2> || std::is_same_v<Super, Super3>) {
    q = part.q[step / 4][byte] >> (2 * (step % 4)) & 3;
  } else {
    q = part.q[step % 4][byte] >> (step / 4 * 4) & 15;
  }
  if constexpr (std::is_same_v<Super, SuperCode>) return kIQ4Values[q];
  if constexpr (std::is_same_v<Super, Super3>) q |= (part.high[byte] >> step & 1) << 2;
  if constexpr (std::is_same_v<Super, Super5>) q |= (part.high[byte] >> step & 1) << 4;
  if constexpr (std::is_same_v<Super, Super6>) {
    q |= (part.high[step / 4][byte] >> (2 * (step % 4)) & 3) << 4;
  }
  return q - Super::kOffset;
}

// D and M of row r's scale s (0 … 8 · kScales − 1).
template <IsSuper Super>
float scale_at(const Super& super, int64_t r, int64_t s) noexcept {
  if constexpr (std::is_same_v<Super, Super2>) {
    return f16_to_f32(super.d[r]) * static_cast<float>(super.scale_min[s][r] & 15);
  } else if constexpr (Super::kMin) {
    return f16_to_f32(super.d[r]) * static_cast<float>(super.scale[s][r]);
  } else {
    return super.d[r] * static_cast<float>(super.scale[s][r]);
  }
}
template <IsSuper Super>
float min_at(const Super& super, int64_t r, int64_t s) noexcept {
  if constexpr (std::is_same_v<Super, Super2>) {
    return f16_to_f32(super.dmin[r]) * static_cast<float>(super.scale_min[s][r] >> 4);
  } else {
    return f16_to_f32(super.dmin[r]) * static_cast<float>(super.min[s][r]);
  }
}

// w of row r's K element k.
template <IsSuper Super>
float weight_at(const Super& super, int64_t r, int64_t k) noexcept {
  const int64_t s = k / (kBlockK / Super::kScales);
  const float product = scale_at(super, r, s) * static_cast<float>(integer_at(super, r, k));
  if constexpr (Super::kMin) {
    return product - min_at(super, r, s);
  } else {
    return product;
  }
}

// Writes row r of one group of super-blocks, whose padding rows the caller zeroes; whether all
// scales are finite. `type` is one of the K types or IQ4_XS.
bool pack_super_row(const uint8_t* row, DType type, int64_t cols, int64_t r,
                    uint8_t* group) noexcept;
// Row r of a group of that layout.
void unpack_super_row(Layout layout, const uint8_t* group, int64_t r, int64_t cols,
                      float* out) noexcept;

}  // namespace cutaway::kernels
