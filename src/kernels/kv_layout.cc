#include "kernels/kv_layout.h"

#include "base/check.h"
#include "tensor/tensor.h"

namespace cutaway::kernels {
namespace {

// Where an array of a tile lies: the index of key element / block i of position p …
int64_t key_index(int64_t p, int64_t i, int64_t per_position) noexcept {
  return (p / kKeyLanes * per_position + i) * kKeyLanes + p % kKeyLanes;
}
// … and of a value's.
int64_t value_index(int64_t p, int64_t i, int64_t per_position) noexcept {
  return p * per_position + i;
}
using Index = int64_t (*)(int64_t p, int64_t i, int64_t per_position) noexcept;

// out[0 … d) of position p; `index` tells keys from values.
void load(KvType type, const void* tile, int64_t d, int64_t p, Index index, float* out) noexcept {
  const int64_t blocks = kv_blocks(d);
  const auto* bytes = static_cast<const uint8_t*>(tile);
  const auto* scales = reinterpret_cast<const uint16_t*>(bytes + kv_element_bytes(type, d));
  const auto scale = [&](int64_t array, int64_t b) noexcept {
    return f16_to_f32(scales[array * kTilePositions * blocks + index(p, b, blocks)]);
  };
  for (int64_t i = 0; i < d; ++i) {
    const int64_t b = i / kKvBlock, j = i % kKvBlock;
    switch (type) {
      case KvType::kF32:
        out[i] = static_cast<const float*>(tile)[index(p, i, d)];
        break;
      case KvType::kF16:
        out[i] = f16_to_f32(static_cast<const uint16_t*>(tile)[index(p, i, d)]);
        break;
      case KvType::kQ8:
        out[i] = scale(0, b) * static_cast<float>(static_cast<const int8_t*>(tile)[index(p, i, d)]);
        break;
      case KvType::kQ4: {
        constexpr int64_t kHalf = kKvBlock / 2;
        const uint8_t byte = bytes[index(p, b * kHalf + j % kHalf, blocks * kHalf)];
        const int q = j < kHalf ? byte & 15 : byte >> 4;
        out[i] = scale(0, b) * static_cast<float>(q) + scale(1, b);
        break;
      }
    }
  }
}

}  // namespace

const char* kv_type_name(KvType type) noexcept {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kF16:
      return "f16";
    case KvType::kQ8:
      return "q8";
    case KvType::kQ4:
      return "q4";
  }
  return "?";
}

void load_key(KvType type, const void* k, int64_t d, int64_t p, float* out) noexcept {
  CUTAWAY_CHECK(p >= 0 && p < kTilePositions);
  load(type, k, d, p, key_index, out);
}

void load_value(KvType type, const void* v, int64_t d, int64_t p, float* out) noexcept {
  CUTAWAY_CHECK(p >= 0 && p < kTilePositions);
  load(type, v, d, p, value_index, out);
}

}  // namespace cutaway::kernels
