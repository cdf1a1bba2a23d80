// Mixtures of experts (Shazeer et al. 2017, arXiv:1701.06538; Mixtral: arXiv:2401.04088).
#pragma once

#include "ops/linear.h"

namespace cutaway::ops {

// For each row of `normalized`: the router's logits in f32; the `used` largest, in falling order,
// ties by expert id; their softmax (over all experts, or over the chosen ones when `normalize`) as
// weights; x += Σ weight · expert(row), summed in that order, then the shared expert. x, the
// residual stream, is then hook_resid_post.
//
// Rows are grouped by expert, so that each expert's weights are read once a pass, and those that
// nobody chose not at all; a row's result depends on no other row. Fires the taps of the router
// (hook_router_logits, hook_expert_indices, hook_expert_weights), of the experts in rank order
// (hook_pre, hook_pre_linear, hook_post: {rows, used, d_mlp}) and hook_mlp_out; and an event
// `moe.route` for each row, when a trace is at level functions or above.
void moe_onto(Pass& pass, int layer, const MoeWeights& weights, const Input& normalized,
              const Rows& x);

}  // namespace cutaway::ops
