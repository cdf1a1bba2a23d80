// Products of activations with weights that share an input.
#pragma once

#include <algorithm>
#include <span>

#include "ops/pass.h"
#include "ops/weights.h"

namespace cutaway::ops {

// Activations {n, d} in the forms that products read.
struct Input {
  int64_t n = 0, d = 0;
  Rows floats;                // data == nullptr: there is only the other form
  kernels::Q8Activations q8;  // q == nullptr: not quantised (yet)

  Input() = default;
  Input(const Rows& x) : n(x.n), d(x.d), floats(x) {}  // implicit: rows are an input as they are

  // What a trace shows of it: the values where there are floats, else the shape.
  TensorView view() const { return {floats.data, Shape{n, d}, 0}; }
};

// True when the product with this weight reads 8-bit activations: its layout has such a kernel, and
// the pass is not precise.
inline bool takes_q8(const Pass& pass, const Matrix& weight) {
  return !pass.precise && pass.table.matmul_q8[static_cast<int>(weight.packed.layout)] != nullptr;
}

// Memory for n quantised tokens of d elements, a multiple of 32.
inline kernels::Q8Output make_q8(Pass& pass, int64_t n, int64_t d) {
  const int64_t blocks = d / kernels::kBlockK;
  return {pass.scratch.take<int8_t>(n * d), pass.scratch.take<float>(n * blocks),
          pass.scratch.take<kernels::HalfSums>(n * blocks), pass.scratch.take<float>(n * blocks),
          d};
}

// Row i of the output.
inline kernels::Q8Output row_of(const kernels::Q8Output& out, int64_t i) {
  const int64_t blocks = out.cols / kernels::kBlockK;
  return {out.q + i * out.cols, out.scale + i * blocks, out.sum + i * blocks,
          out.total + i * blocks, out.cols};
}

// True when one of the weights reads 8-bit activations.
inline bool any_takes_q8(const Pass& pass, std::span<const Linear* const> readers) {
  return std::any_of(readers.begin(), readers.end(),
                     [&](const Linear* linear) { return takes_q8(pass, linear->weight); });
}

// x, quantised to 8 bits when one of its readers takes that and it is not yet.
Input quantized_for(Pass& pass, const Input& x, std::span<const Linear* const> readers);

// y[c·y_stride + r − 16·group_begin] = x · Wᵀ + bias for tokens c0 + c, c in [0, n), and the output
// features r of the weight's groups [group_begin, group_end). For one thread.
void multiply(const Pass& pass, const Linear& linear, const Input& x, int64_t c0, int64_t n,
              int64_t group_begin, int64_t group_end, float* y, int64_t y_stride) noexcept;

struct Projection {
  const Linear* linear = nullptr;
  Rows out;  // {x.n, linear's out features}
};

// out = x · Wᵀ + bias for each projection; threads divide the output features.
void project(Pass& pass, const Input& x, std::span<const Projection> projections);
inline void project_one(Pass& pass, const Input& x, const Linear& linear, const Rows& out) {
  const Projection projection{&linear, out};
  project(pass, x, std::span(&projection, 1));
}

// The taps of a block's last product: the product alone, and the residual stream with it.
struct ResidualSites {
  trace::Site out, residual;
};
inline constexpr ResidualSites kAfterAttention{trace::Site::kAttnOut, trace::Site::kResidMid};
inline constexpr ResidualSites kAfterMlp{trace::Site::kMlpOut, trace::Site::kResidPost};

// residual += x · Wᵀ + bias, tile by tile as the product is made: how attention and the MLP write
// onto the residual stream. The bits are those of project() and add_residual().
void project_onto(Pass& pass, const ResidualSites& sites, int layer, const Input& x,
                  const Linear& linear, const Rows& residual);

// project() with about 15 bits of each activation where it keeps 8: x as a sum of two
// quantised terms, the second of what the first leaves. Twice the arithmetic, the weights are read
// once: for the head, whose rounding errors reach the logits undamped.
void project_fine(Pass& pass, const Rows& x, const Linear& linear, const Rows& out);

}  // namespace cutaway::ops
