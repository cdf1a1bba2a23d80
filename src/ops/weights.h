// Weights as the blocks of ops/ take them. Immutable, shared by every sequence; the memory belongs
// to the loaded model.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/layout.h"

namespace cutaway::ops {

// A linear map from cols to rows features, packed. rows == 0: absent.
struct Matrix {
  kernels::PackedMatrix packed;
  bool present() const { return packed.rows > 0; }
  int64_t out_features() const { return packed.rows; }
  int64_t in_features() const { return packed.cols; }
};

// f32 values (a norm's weight, a bias). data == nullptr: absent.
struct Vector {
  const float* data = nullptr;
  int64_t n = 0;
  bool present() const { return data != nullptr; }
};

struct Linear {
  Matrix weight;
  Vector bias;  // may be absent
};

struct AttentionWeights {
  Linear q, k, v, o;
  std::array<const Linear*, 3> readers() const { return {&q, &k, &v}; }  // of the block's input
};

struct GatedMlpWeights {
  Linear gate, up, down;
  std::array<const Linear*, 2> readers() const { return {&gate, &up}; }  // of the block's input
};

}  // namespace cutaway::ops
