// The gated MLP: gate, up and activation of a few features are computed together, so that the wide
// rows between the two products exist in a tile only, and in the form that the second one reads.

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/blocks.h"
#include "trace/trace.h"

namespace cutaway::ops {
namespace {

using kernels::kBlockK;
using kernels::kGroupRows;
using trace::Site;

// A tile is `tokens` × `rows` features with tokens · rows ≤ kTileFloats: many tokens and one block
// of features in prefill, one token and a long run of features in decode.
constexpr int64_t kTileTokens = 96;
constexpr int64_t kTileFloats = kTileTokens * kBlockK;
constexpr int64_t kChunksPerThread = 6;

// Where the activation goes, and what probes want to see on the way (data == nullptr: nobody).
struct Outputs {
  kernels::Q8Output q8;  // for `down`, when it takes 8-bit activations
  Rows gate, up, post;
};

void copy_rows(const float* tile, int64_t n, int64_t rows, const Rows& to, int64_t c0,
               int64_t first) noexcept {
  if (to.data == nullptr) return;
  for (int64_t c = 0; c < n; ++c) {
    std::memcpy(to.row(c0 + c) + first, tile + c * rows, static_cast<size_t>(rows) * sizeof(float));
  }
}

// Features [first, first + rows) of all tokens.
void run_features(const Pass& pass, const GatedMlpWeights& weights, const Input& x, int64_t first,
                  int64_t rows, const Outputs& out) noexcept {
  float gate[kTileFloats], up[kTileFloats];
  const int64_t g = first / kGroupRows;
  const int64_t g_end = (first + rows + kGroupRows - 1) / kGroupRows;
  const int64_t tokens = std::clamp<int64_t>(kTileFloats / rows, 1, kTileTokens);
  for (int64_t c0 = 0; c0 < x.n; c0 += tokens) {
    const int64_t n = std::min(tokens, x.n - c0);
    multiply(pass, weights.gate, x, c0, n, g, g_end, gate, rows);
    multiply(pass, weights.up, x, c0, n, g, g_end, up, rows);
    copy_rows(gate, n, rows, out.gate, c0, first);
    copy_rows(up, n, rows, out.up, c0, first);
    pass.table.silu_mul(gate, up, n * rows, gate);
    copy_rows(gate, n, rows, out.post, c0, first);
    if (out.q8.q != nullptr) {
      const int64_t blocks = out.q8.cols / kBlockK;
      pass.table.quantize_q8(gate, rows, n, rows, first / kBlockK,
                             {out.q8.q + c0 * out.q8.cols, out.q8.scale + c0 * blocks,
                              out.q8.sum + c0 * blocks, out.q8.total + c0 * blocks, out.q8.cols});
    }
  }
}

// What down reads: silu(gate(x)) · up(x), in 8 bits or as floats.
Input gate_and_up(Pass& pass, int layer, const GatedMlpWeights& weights, const Input& normalized) {
  const int64_t n = normalized.n;
  const int64_t d_mlp = weights.gate.weight.out_features();
  CUTAWAY_SPAN(span, "ops::gate_and_up", "x", normalized.view(), "features", d_mlp);
  CUTAWAY_CHECK(weights.gate.weight.in_features() == normalized.d &&
                weights.up.weight.out_features() == d_mlp &&
                weights.down.weight.in_features() == d_mlp);
  const Input x = quantized_for(pass, normalized, weights.readers());
  const bool q8 = takes_q8(pass, weights.down.weight);
  Outputs outputs;
  if (q8) outputs.q8 = make_q8(pass, n, d_mlp);
  if (pass.wants(Site::kMlpPre, layer)) outputs.gate = pass.make(n, d_mlp);
  if (pass.wants(Site::kMlpPreLinear, layer)) outputs.up = pass.make(n, d_mlp);
  if (!q8 || pass.wants(Site::kMlpPost, layer)) outputs.post = pass.make(n, d_mlp);

  const int64_t per_chunk = d_mlp / (pass.pool.size() * kChunksPerThread) / kBlockK * kBlockK;
  const int64_t most = kTileFloats / std::min(n, kTileTokens) / kBlockK * kBlockK;
  const int64_t rows = std::clamp(per_chunk, kBlockK, most);
  pass.pool.parallel_for(
      static_cast<size_t>((d_mlp + rows - 1) / rows), [&](size_t chunk) noexcept {
        const int64_t first = static_cast<int64_t>(chunk) * rows;
        run_features(pass, weights, x, first, std::min(rows, d_mlp - first), outputs);
      });
  if (outputs.gate.data != nullptr) pass.tap(Site::kMlpPre, layer, outputs.gate);
  if (outputs.up.data != nullptr) pass.tap(Site::kMlpPreLinear, layer, outputs.up);
  if (outputs.post.data != nullptr) pass.tap(Site::kMlpPost, layer, outputs.post);
  CUTAWAY_OUT(span, "q8", q8);
  Input out{n, d_mlp, outputs.q8.view()};
  out.floats = outputs.post;
  return out;
}

}  // namespace

Rows gated_mlp(Pass& pass, int layer, const GatedMlpWeights& weights, const Input& normalized) {
  CUTAWAY_SPAN(span, "ops::gated_mlp", "x", normalized.view());
  const Rows out = pass.make(normalized.n, weights.down.weight.out_features());
  const Scratch::Mark mark = pass.scratch.mark();
  project(pass, gate_and_up(pass, layer, weights, normalized), weights.down, out);
  pass.scratch.rewind(mark);
  pass.tap(Site::kMlpOut, layer, out);
  CUTAWAY_OUT(span, "out", out.view());
  return out;
}

void gated_mlp_onto(Pass& pass, int layer, const GatedMlpWeights& weights, const Input& normalized,
                    const Rows& x) {
  CUTAWAY_SPAN(span, "ops::gated_mlp_onto", "x", normalized.view());
  const Scratch::Mark mark = pass.scratch.mark();
  const Input hidden = gate_and_up(pass, layer, weights, normalized);
  project_onto(pass, kAfterMlp, layer, hidden, weights.down, x);
  pass.scratch.rewind(mark);
  CUTAWAY_OUT(span, "resid_post", x.view());
}

}  // namespace cutaway::ops
