// Weights as the blocks of ops/ take them. Immutable, shared by every sequence; the memory belongs
// to the loaded model.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

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

// QK norm: RMS norms of q and k before they are rotated. Weights of a head's size norm each head by
// itself, those of a row's size all heads together. Absent: none.
struct QkNorm {
  Vector q, k;
  float eps = 0;
};

struct AttentionWeights {
  Linear q, k, v, o;
  QkNorm qk_norm = {};
  std::array<const Linear*, 3> readers() const { return {&q, &k, &v}; }  // of the block's input
};

enum class Activation : uint8_t { kSilu, kGelu };

struct GatedMlpWeights {
  Linear gate, up, down;
  Activation activation = Activation::kSilu;                             // of gate
  std::array<const Linear*, 2> readers() const { return {&gate, &up}; }  // of the block's input
};

// An MLP without a gate: down(gelu(up(x))).
struct MlpWeights {
  Linear up, down;
  std::array<const Linear*, 1> readers() const { return {&up}; }  // of the block's input
};

// (x − mean) / sqrt(variance + eps) · weight + bias (Ba et al. 2016, arXiv:1607.06450).
struct LayerNorm {
  Vector weight, bias;
  float eps = 0;
};

// One weight of every expert of a layer: `n` packed matrices of one layout and shape, `stride`
// bytes apart. n == 0: absent.
struct ExpertMatrices {
  kernels::PackedMatrix first;
  int64_t n = 0;
  size_t stride = 0;

  Matrix of(int64_t expert) const {
    Matrix out{first};
    out.packed.data += static_cast<size_t>(expert) * stride;
    return out;
  }
};

// A mixture of experts: gated MLPs of one shape and type, of which a router chooses `used` for each
// token; and, where a model has it, one that every token passes, weighted by sigmoid(shared_gate ·
// x).
struct MoeWeights {
  Linear router;  // {n_experts, d_model}
  std::vector<GatedMlpWeights> experts;
  int64_t used = 0;
  bool normalize = false;  // the chosen experts' weights sum to 1
  GatedMlpWeights shared;
  Vector shared_gate;  // {d_model}; absent: no shared expert

  bool present() const { return !experts.empty(); }
  // Of the block's input, beside the router, which reads floats.
  std::array<const Linear*, 4> readers() const {
    return {&experts[0].gate, &experts[0].up, &shared.gate, &shared.up};
  }
};

}  // namespace cutaway::ops
