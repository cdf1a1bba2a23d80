// The blocks that an architecture's forward is written in. Each fires its taps; the names are those
// of the tap table in trace/probe.h.
#pragma once

#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace cutaway::ops {

// Token embeddings {rows, d_model}: the start of the residual stream.
Rows embed(Pass& pass, const Matrix& table);

// Self-attention of one layer: q, k, v from the normalised input, rotary positions, keys and values
// into the cache, attention, output projection. Returns {rows, d_model}.
Rows self_attention(Pass& pass, int layer, const AttentionShape& shape,
                    const AttentionWeights& weights, const Rope& rope, const Rope::Angles& angles,
                    const Input& normalized);
// The same, added to the residual stream x as it is made, which is then hook_resid_mid.
void self_attention_onto(Pass& pass, int layer, const AttentionShape& shape,
                         const AttentionWeights& weights, const Rope& rope,
                         const Rope::Angles& angles, const Input& normalized, const Rows& x);

// down(silu(gate(x)) · up(x)). Returns {rows, d_model}.
Rows gated_mlp(Pass& pass, int layer, const GatedMlpWeights& weights, const Input& normalized);
// The same, added to the residual stream x as it is made, which is then hook_resid_post.
void gated_mlp_onto(Pass& pass, int layer, const GatedMlpWeights& weights, const Input& normalized,
                    const Rows& x);

// x += y: the residual stream after attention (hook_resid_mid) or after the MLP (hook_resid_post),
// where something stands between the block and the addition.
void add_residual(Pass& pass, trace::Site site, int layer, const Rows& x, const Rows& y);

// Logits {batch.logit_rows, vocab}: the final norm and the head, of those rows only (of all, when a
// probe wants the final norm). Fires the taps of ln_final and the logits.
Rows unembed(Pass& pass, const Rows& x, const Vector& norm, float eps, const Linear& head);

}  // namespace cutaway::ops
