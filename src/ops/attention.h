// Grouped-query attention over paged keys and values.
#pragma once

#include <cstdint>

#include "ops/linear.h"

namespace cutaway::ops {

struct AttentionShape {
  int64_t n_heads = 0, n_kv_heads = 0;  // n_heads is a multiple of n_kv_heads
  int64_t d_head = 0;                   // 1 … kernels::kMaxHeadSize
  float scale = 1;                      // of the scores
  float soft_cap = 0;                   // 0: none
  int64_t window = 0;                   // keys that a query sees, itself included; 0: all before it

  int64_t group() const { return n_heads / n_kv_heads; }  // query heads per KV head
};

// Writes this pass's keys and values {rows, n_kv_heads · d_head} into the pages of each slice.
void store_kv(Pass& pass, int layer, const AttentionShape& shape, const Rows& k, const Rows& v);

// z {rows, n_heads · d_head}: for each row and head, softmax(scale · q · Kᵀ) · V over the keys that
// the row sees, read from the pages as they were stored. Every tile of 64 keys gives an independent
// (max, sum, out), and tiles are merged in position order: prefill, decode, one thread or many give
// the same bits. Scores, patterns and the standing form are kept beside it for the probes that want
// them, of the same tiles: a pattern is exp(score − max) / sum with the max and sum that z has.
void attend(Pass& pass, int layer, const AttentionShape& shape, const Rows& q, const Rows& z);

// attend() step by step, for editors of scores and patterns: scores, softmax
// and the sum over values each exist, are tapped, and are read from. Within rounding of attend(). A
// query all of whose keys an editor made unseen reads nothing: z is 0.
void attend_plain(Pass& pass, int layer, const AttentionShape& shape, const Rows& q, const Rows& z);

// out = z · Wᵀ + bias as the sum of what each head writes, hook_result {rows, n_heads, d_model},
// for editors of it (and probes beside them). z is read in 8 bits where the product reads it so;
// sums in f32, heads in order.
void project_heads(Pass& pass, int layer, int64_t n_heads, const Rows& z, const Linear& o,
                   const Rows& out);

// Shows what each head gives to the residual stream {rows, n_heads, d_model} to the probes that
// want it: its part of z times its columns of the output projection, both as f32, before the bias.
// Costs nothing when none does.
void show_result(Pass& pass, int layer, const AttentionShape& shape, const Rows& z,
                 const Linear& o);
inline void tap_result(Pass& pass, int layer, const AttentionShape& shape, const Rows& z,
                       const Linear& o) {
  // An editor's pass shows the ones that it sums up: project_heads().
  const trace::Site site = trace::Site::kResult;
  if (pass.wants(site, layer) && !pass.changes(site, layer)) show_result(pass, layer, shape, z, o);
}

}  // namespace cutaway::ops
