// The blocks that an architecture's forward is written in. Each fires its taps; the names are those
// of the tap table in trace/probe.h.
#pragma once

#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace cutaway::ops {

// Token embeddings {rows, d_model}, times `multiplier`: the start of the residual stream.
Rows embed(Pass& pass, const Matrix& table, float multiplier = 1);

// x += the learned embedding of each row's position (hook_pos_embed). Positions are below the rows
// of `table`.
void add_positions(Pass& pass, const Matrix& table, const Rows& x);

// The residual stream as what attention reads, where no norm stands between (hook_resid_pre).
Input read_residual(Pass& pass, int layer, const Rows& x);

// Self-attention of one layer: q, k, v from the normalised input, QK norm, rotary positions (a rope
// without pairs rotates nothing), keys and values into the cache, attention, output projection.
// Returns {rows, d_model}, for add_residual().
Rows self_attention(Pass& pass, int layer, const AttentionShape& shape,
                    const AttentionWeights& weights, const Rope& rope, const Rope::Angles& angles,
                    const Input& normalized);
// The same, added to the residual stream x as it is made, which is then hook_resid_mid.
void self_attention_onto(Pass& pass, int layer, const AttentionShape& shape,
                         const AttentionWeights& weights, const Rope& rope,
                         const Rope::Angles& angles, const Input& normalized, const Rows& x);

// down(activation(gate(x)) · up(x)). Returns {rows, d_model}, for add_residual().
Rows gated_mlp(Pass& pass, int layer, const GatedMlpWeights& weights, const Input& normalized);
// The same, added to the residual stream x as it is made, which is then hook_resid_post.
void gated_mlp_onto(Pass& pass, int layer, const GatedMlpWeights& weights, const Input& normalized,
                    const Rows& x);

// x += down(gelu(up(normalized))): an MLP without a gate, whose hook_pre is what gelu takes.
void mlp_onto(Pass& pass, int layer, const MlpWeights& weights, const Input& normalized,
              const Rows& x);

// x += multiplier · y, where something stands between a block and the residual stream. y becomes
// the product, which is hook_attn_out or hook_mlp_out: what the stream gains.
void add_residual(Pass& pass, const ResidualSites& sites, int layer, const Rows& x, const Rows& y,
                  float multiplier = 1);

// What becomes of the head's products before they are logits: multiplier · x, then cap · tanh(x /
// cap).
struct LogitForm {
  float multiplier = 1;
  float soft_cap = 0;  // 0: none
};

// Logits {batch.logit_rows, vocab}: the final norm and the head, of those rows only (of all, when a
// probe or an editor wants the final norm). Fires the taps of ln_final and the logits.
Rows unembed(Pass& pass, const Rows& x, const Vector& norm, float eps, const Linear& head,
             const LogitForm& form = {});
Rows unembed(Pass& pass, const Rows& x, const LayerNorm& norm, const Linear& head);

}  // namespace cutaway::ops
