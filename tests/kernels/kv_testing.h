// A KV tile read as kernels/kv_layout.h describes it, in double and without the code under test.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/kv_layout.h"
#include "tensor/tensor.h"

namespace cutaway::kernels::testing {

inline constexpr KvType kKvTypes[] = {KvType::kF32, KvType::kF16, KvType::kQ8, KvType::kQ4};

enum class Side { kKey, kValue };

// One element: its value, what its terms add up to in size (|d·q| + |m| of kQ4, else |value|), and
// what it was made of.
struct StoredElement {
  double value = 0, magnitude = 0;
  double step = 0, min = 0;  // d and m of the quantised types
  int q = 0;
};

// Index of entry i of position p in an array of `per_position` entries.
inline int64_t entry_index(Side side, int64_t p, int64_t i, int64_t per_position) {
  return side == Side::kKey ? (p / 16 * per_position + i) * 16 + p % 16 : p * per_position + i;
}

template <typename T>
T read_entry(const uint8_t* array, int64_t index) {
  T out;
  std::memcpy(&out, array + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return out;
}

inline StoredElement stored_element(KvType type, Side side, const uint8_t* tile, int64_t d,
                                    int64_t p, int64_t i) {
  StoredElement out;
  const int64_t blocks = (d + 31) / 32, b = i / 32, j = i % 32;
  const auto half = [&](const uint8_t* array, int64_t index) {
    return static_cast<double>(f16_to_f32(read_entry<uint16_t>(array, index)));
  };
  if (type == KvType::kF32) {
    out.value = static_cast<double>(read_entry<float>(tile, entry_index(side, p, i, d)));
  } else if (type == KvType::kF16) {
    out.value = half(tile, entry_index(side, p, i, d));
  } else if (type == KvType::kQ8) {
    out.q = read_entry<int8_t>(tile, entry_index(side, p, i, d));
    out.step = half(tile + 64 * d, entry_index(side, p, b, blocks));
    out.value = out.step * out.q;
  } else {
    const auto byte = read_entry<uint8_t>(tile, entry_index(side, p, b * 16 + j % 16, blocks * 16));
    const uint8_t* scales = tile + int64_t{64} * 16 * blocks;
    out.q = j < 16 ? byte & 15 : byte >> 4;
    out.step = half(scales, entry_index(side, p, b, blocks));
    out.min = half(scales + 64 * blocks * 2, entry_index(side, p, b, blocks));
    out.value = out.step * out.q + out.min;
    out.magnitude = std::fabs(out.step * out.q) + std::fabs(out.min);
    return out;
  }
  out.magnitude = std::fabs(out.value);
  return out;
}

}  // namespace cutaway::kernels::testing
