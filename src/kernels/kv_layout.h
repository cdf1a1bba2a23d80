// How the keys and values of one KV head at 64 consecutive positions (a tile) lie in memory.
//
// Keys have a SIMD lane per position, values a lane per element:
//
//   type   keys                                        values
//   kF32   f32 k[p / 16][i][p % 16]                    f32 v[p][i]
//   kF16   f16 k[p / 16][i][p % 16]                    f16 v[p][i]
//   kQ8    i8  k[p / 16][i][p % 16]                    i8  v[p][i]
//          f16 d[p / 16][b][p % 16]                    f16 d[p][b]
//   kQ4    u8  k[p / 16][b][j][p % 16]                 u8  v[p][b][j]
//          f16 d[p / 16][b][p % 16], then m likewise   f16 d[p][b], then m likewise
//
// Position p of the tile is 0 … 63, element i of the head 0 … d − 1, b = i / 32 a block of one
// position (so a group of quantised values never spans positions), the last one may be short. Byte
// j (0 … 15) of a kQ4 block holds element 32·b + j in its low half and 32·b + 16 + j in its high
// half; halves past the head's end are 0. Each array follows the one before it.
//
//   kQ8   x ≈ d · q        d = f16(amax / 127), q = round(x / d) in −127 … 127, ties to even
//   kQ4   x ≈ d · q + m    m = f16(min), d = f16((max − m) / 15), q = round((x − m) / d) in 0 … 15
//
// A scale that rounds to 0 gives q = 0, a min of −0 is stored as 0. A block that holds an infinity
// or a NaN gets d = NaN (and m = 0), so that it shows; one whose scale is beyond f16 gets d = inf
// and q = 0, and reads as NaN too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cutaway::kernels {

enum class KvType : uint8_t { kF32, kF16, kQ8, kQ4 };
const char* kv_type_name(KvType type) noexcept;  // "f32", "f16", "q8", "q4"

inline constexpr int64_t kTilePositions = 64;  // keys of one attention tile = positions of a page
inline constexpr int64_t kKeyLanes = 16;
inline constexpr int64_t kKvBlock = 32;
inline constexpr int64_t kMaxHeadSize = 1024;  // elements; of every kernel that takes a head

// Blocks of one position's head of d elements.
constexpr int64_t kv_blocks(int64_t d) noexcept { return (d + kKvBlock - 1) / kKvBlock; }

// Bytes of the quantised (or plain) elements of 64 positions: what the scales come after.
constexpr int64_t kv_element_bytes(KvType type, int64_t d) noexcept {
  switch (type) {
    case KvType::kF32:
      return kTilePositions * d * 4;
    case KvType::kF16:
      return kTilePositions * d * 2;
    case KvType::kQ8:
      return kTilePositions * d;
    case KvType::kQ4:
      return kTilePositions * kv_blocks(d) * (kKvBlock / 2);
  }
  return 0;
}

// Bytes of one array of scales (kQ8 has one, kQ4 two).
constexpr int64_t kv_scale_bytes(int64_t d) noexcept { return kTilePositions * kv_blocks(d) * 2; }

// Bytes of a head's keys (or values) of 64 positions, a multiple of 64.
constexpr int64_t kv_tile_bytes(KvType type, int64_t d) noexcept {
  const int64_t scales = type == KvType::kQ8 ? 1 : type == KvType::kQ4 ? 2 : 0;
  return (kv_element_bytes(type, d) + scales * kv_scale_bytes(d) + 63) / 64 * 64;
}

struct KvTile {
  KvType type = KvType::kF16;
  const void* k = nullptr;
  const void* v = nullptr;
};

// The key / value at position p of a tile's memory as attention reads it: out[0 … d).
void load_key(KvType type, const void* k, int64_t d, int64_t p, float* out) noexcept;
void load_value(KvType type, const void* v, int64_t d, int64_t p, float* out) noexcept;

}  // namespace cutaway::kernels
