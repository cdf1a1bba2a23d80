// The inside of gated MLPs, one thread's share of it: gate, up and activation of a few features and
// tokens, in a tile. Internal to ops/.
#pragma once

#include "ops/linear.h"

namespace cutaway::ops {

// A tile is `tokens` × `rows` features with tokens · rows ≤ kTileFloats: many tokens and one block
// of features in prefill, one token and a long run of features in decode.
inline constexpr int64_t kTileTokens = 96;
inline constexpr int64_t kTileFloats = kTileTokens * kernels::kBlockK;

// The most features, a multiple of 32, whose tile holds n tokens or all that a tile can.
inline int64_t most_tile_rows(int64_t n) {
  const int64_t tokens = n < kTileTokens ? n : kTileTokens;
  return kTileFloats / tokens / kernels::kBlockK * kernels::kBlockK;
}

// activation(gate) · up, element by element: the kernel for it.
inline auto activation_of(const Pass& pass, Activation activation) {
  return activation == Activation::kGelu ? pass.table.gelu_mul : pass.table.silu_mul;
}

// Where the activation goes, and what probes want to see on the way (data == nullptr: nobody).
struct GatedOutputs {
  kernels::Q8Output q8;  // for `down`, when it takes 8-bit activations
  Rows gate, up, post;
};

// silu(gate(x)) · up(x), features [first, first + rows), of the n rows of x from x_row on, to the
// rows of `out` from out_row on. `first` is a multiple of 32, rows ≤ kTileFloats.
void gated_features(const Pass& pass, const GatedMlpWeights& weights, const Input& x, int64_t x_row,
                    int64_t n, int64_t first, int64_t rows, const GatedOutputs& out,
                    int64_t out_row) noexcept;

}  // namespace cutaway::ops
