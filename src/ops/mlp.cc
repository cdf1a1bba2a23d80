// The gated MLP: gate, up and activation of a few features are computed together, so that the wide
// rows between the two products exist in a tile only, and in the form that the second one reads.

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/blocks.h"
#include "ops/gated_tile.h"
#include "trace/trace.h"

namespace cutaway::ops {
namespace {

using kernels::kBlockK;
using kernels::kGroupRows;
using trace::Site;

constexpr int64_t kChunksPerThread = 6;

void copy_rows(const float* tile, int64_t n, int64_t rows, const Rows& to, int64_t row,
               int64_t first) noexcept {
  if (to.data == nullptr) return;
  for (int64_t c = 0; c < n; ++c) {
    std::memcpy(to.row(row + c) + first, tile + c * rows,
                static_cast<size_t>(rows) * sizeof(float));
  }
}

}  // namespace

void gated_features(const Pass& pass, const GatedMlpWeights& weights, const Input& x, int64_t x_row,
                    int64_t n, int64_t first, int64_t rows, const GatedOutputs& out,
                    int64_t out_row) noexcept {
  float gate[kTileFloats], up[kTileFloats];
  const auto activate = activation_of(pass, weights.activation);
  const int64_t g = first / kGroupRows;
  const int64_t g_end = (first + rows + kGroupRows - 1) / kGroupRows;
  const int64_t most = std::clamp<int64_t>(kTileFloats / rows, 1, kTileTokens);
  for (int64_t c0 = 0; c0 < n; c0 += most) {
    const int64_t tokens = std::min(most, n - c0), row = out_row + c0;
    multiply(pass, weights.gate, x, x_row + c0, tokens, g, g_end, gate, rows);
    multiply(pass, weights.up, x, x_row + c0, tokens, g, g_end, up, rows);
    copy_rows(gate, tokens, rows, out.gate, row, first);
    copy_rows(up, tokens, rows, out.up, row, first);
    activate(gate, up, tokens * rows, gate);
    copy_rows(gate, tokens, rows, out.post, row, first);
    if (out.q8.q != nullptr) {
      pass.table.quantize_q8(gate, rows, tokens, rows, first / kBlockK, row_of(out.q8, row));
    }
  }
}

namespace {

bool is_edited(const Pass& pass, int layer) {
  return pass.changes(Site::kMlpPre, layer) || pass.changes(Site::kMlpPreLinear, layer) ||
         pass.changes(Site::kMlpPost, layer);
}

// gate_and_up() in whole rows, step by step, for editors to change them in between.
Input gate_then_up(Pass& pass, int layer, const GatedMlpWeights& weights, const Input& x) {
  const int64_t d_mlp = weights.gate.weight.out_features();
  CUTAWAY_SPAN(span, "ops::gate_then_up", "x", x.view(), "features", d_mlp);
  const Rows gate = pass.make(x.n, d_mlp), up = pass.make(x.n, d_mlp);
  const Projection both[] = {{&weights.gate, gate}, {&weights.up, up}};
  project(pass, x, both);
  pass.tap(Site::kMlpPre, layer, gate);
  pass.tap(Site::kMlpPreLinear, layer, up);
  const auto activate = activation_of(pass, weights.activation);
  for_rows(pass, x.n,
           [&](int64_t i) noexcept { activate(gate.row(i), up.row(i), d_mlp, gate.row(i)); });
  pass.tap(Site::kMlpPost, layer, gate);
  CUTAWAY_OUT(span, "post", gate.view());
  return gate;
}

// What down reads: activation(gate(x)) · up(x), in 8 bits or as floats.
Input gate_and_up(Pass& pass, int layer, const GatedMlpWeights& weights, const Input& normalized) {
  const int64_t n = normalized.n;
  const int64_t d_mlp = weights.gate.weight.out_features();
  CUTAWAY_SPAN(span, "ops::gate_and_up", "x", normalized.view(), "features", d_mlp);
  CUTAWAY_CHECK(weights.gate.weight.in_features() == normalized.d &&
                weights.up.weight.out_features() == d_mlp &&
                weights.down.weight.in_features() == d_mlp);
  if (is_edited(pass, layer)) [[unlikely]]
    return gate_then_up(pass, layer, weights, normalized);
  const Input x = quantized_for(pass, normalized, weights.readers());
  const bool q8 = takes_q8(pass, weights.down.weight);
  GatedOutputs outputs;
  if (q8) outputs.q8 = make_q8(pass, n, d_mlp);
  if (pass.wants(Site::kMlpPre, layer)) {
    outputs.gate = pass.make_tapped(Site::kMlpPre, layer, d_mlp);
  }
  if (pass.wants(Site::kMlpPreLinear, layer)) {
    outputs.up = pass.make_tapped(Site::kMlpPreLinear, layer, d_mlp);
  }
  if (pass.wants(Site::kMlpPost, layer)) {
    outputs.post = pass.make_tapped(Site::kMlpPost, layer, d_mlp);
  } else if (!q8) {
    outputs.post = pass.make(n, d_mlp);
  }

  const int64_t per_chunk = d_mlp / (pass.pool.size() * kChunksPerThread) / kBlockK * kBlockK;
  const int64_t rows = std::clamp(per_chunk, kBlockK, most_tile_rows(n));
  pass.pool.parallel_for(
      static_cast<size_t>((d_mlp + rows - 1) / rows), [&](size_t chunk) noexcept {
        const int64_t first = static_cast<int64_t>(chunk) * rows;
        gated_features(pass, weights, x, 0, n, first, std::min(rows, d_mlp - first), outputs, 0);
      });
  if (outputs.gate.data != nullptr) pass.tap(Site::kMlpPre, layer, outputs.gate);
  if (outputs.up.data != nullptr) pass.tap(Site::kMlpPreLinear, layer, outputs.up);
  if (outputs.post.data != nullptr) pass.tap(Site::kMlpPost, layer, outputs.post);
  CUTAWAY_OUT(span, "q8", q8);
  Input out;
  out.n = n;
  out.d = d_mlp;
  out.q8 = outputs.q8.view();
  out.floats = outputs.post;
  return out;
}

}  // namespace

Rows gated_mlp(Pass& pass, int layer, const GatedMlpWeights& weights, const Input& normalized) {
  CUTAWAY_SPAN(span, "ops::gated_mlp", "x", normalized.view());
  const Rows out = pass.make(normalized.n, weights.down.weight.out_features());
  const Scratch::Mark mark = pass.scratch.mark();
  project_one(pass, gate_and_up(pass, layer, weights, normalized), weights.down, out);
  pass.scratch.rewind(mark);
  CUTAWAY_OUT(span, "out", out.view());
  return out;
}

void mlp_onto(Pass& pass, int layer, const MlpWeights& weights, const Input& normalized,
              const Rows& x) {
  CUTAWAY_SPAN(span, "ops::mlp_onto", "x", normalized.view());
  const Scratch::Mark mark = pass.scratch.mark();
  const Rows hidden = pass.make(normalized.n, weights.up.weight.out_features());
  project_one(pass, normalized, weights.up, hidden);
  pass.tap(Site::kMlpPre, layer, hidden);
  for_rows(pass, hidden.n, [&](int64_t i) noexcept {
    pass.table.gelu_mul(hidden.row(i), nullptr, hidden.d, hidden.row(i));
  });
  pass.tap(Site::kMlpPost, layer, hidden);
  project_onto(pass, kAfterMlp, layer, hidden, weights.down, x);
  pass.scratch.rewind(mark);
  CUTAWAY_OUT(span, "resid_post", x.view());
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
