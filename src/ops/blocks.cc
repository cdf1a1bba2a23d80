#include "ops/blocks.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "trace/trace.h"

namespace cutaway::ops {

using trace::Site;

namespace {

void scale(float* x, int64_t n, float by) noexcept {
  for (int64_t i = 0; i < n; ++i) x[i] *= by;
}

}  // namespace

Rows embed(Pass& pass, const Matrix& table, float multiplier) {
  CUTAWAY_SPAN(span, "ops::embed", "tokens", pass.batch.tokens);
  const Rows out = pass.make(pass.rows(), table.in_features());
  for_rows(pass, out.n, [&](int64_t i) noexcept {
    const int32_t token = pass.batch.tokens[static_cast<size_t>(i)];
    CUTAWAY_CHECK(token >= 0 && token < table.out_features());
    kernels::unpack_row(table.packed, token, out.row(i));
    if (multiplier != 1) scale(out.row(i), out.d, multiplier);
  });
  if (pass.wants(Site::kTokens, -1)) {
    const Rows ids = pass.make(out.n, 1);
    for (int64_t i = 0; i < out.n; ++i) {
      *ids.row(i) = static_cast<float>(pass.batch.tokens[static_cast<size_t>(i)]);
    }
    pass.tap(Site::kTokens, -1, ids);
  }
  pass.tap(Site::kEmbed, -1, out);
  CUTAWAY_OUT(span, "out", out.view());
  return out;
}

void add_positions(Pass& pass, const Matrix& table, const Rows& x) {
  CUTAWAY_SPAN(span, "ops::add_positions", "x", x.view());
  CUTAWAY_CHECK(table.in_features() == x.d);
  const Scratch::Mark mark = pass.scratch.mark();
  const Rows positions = pass.make(x.n, x.d);
  for (const Slice& slice : pass.batch.slices) {
    CUTAWAY_CHECK(slice.first_position + slice.n <= table.out_features());
    for_rows(pass, slice.n, [&](int64_t i) noexcept {
      kernels::unpack_row(table.packed, slice.first_position + i,
                          positions.row(slice.first_row + i));
    });
  }
  pass.tap(Site::kPosEmbed, -1, positions);
  for_rows(pass, x.n,
           [&](int64_t i) noexcept { pass.table.add(x.row(i), positions.row(i), x.d, x.row(i)); });
  pass.scratch.rewind(mark);
  CUTAWAY_OUT(span, "x", x.view());
}

Input read_residual(Pass& pass, int layer, const Rows& x) {
  CUTAWAY_SPAN(span, "ops::read_residual", "x", x.view());
  pass.tap(Site::kResidPre, layer, x);
  CUTAWAY_OUT(span, "x", x.view());
  return x;
}

namespace {

// What the heads give, before the output projection: {rows, n_heads · d_head}.
Rows heads(Pass& pass, int layer, const AttentionShape& shape, const AttentionWeights& weights,
           const Rope& rope, const Rope::Angles& angles, const Input& normalized) {
  const int64_t d = shape.d_head;
  const Rows q = pass.make(normalized.n, shape.n_heads * d);
  const Rows k = pass.make(normalized.n, shape.n_kv_heads * d);
  const Rows v = pass.make(normalized.n, shape.n_kv_heads * d);
  const Projection qkv[] = {{&weights.q, q}, {&weights.k, k}, {&weights.v, v}};
  project(pass, normalized, qkv);
  pass.tap(Site::kQ, layer, q, {shape.n_heads, d});
  pass.tap(Site::kK, layer, k, {shape.n_kv_heads, d});
  pass.tap(Site::kV, layer, v, {shape.n_kv_heads, d});

  if (const QkNorm& norm = weights.qk_norm; norm.q.present()) {
    rms_norm_parts(pass, q, norm.q, norm.eps);
    rms_norm_parts(pass, k, norm.k, norm.eps);
  }
  rotate(pass, rope, angles, shape.n_heads, q);
  rotate(pass, rope, angles, shape.n_kv_heads, k);
  pass.tap(Site::kRotQ, layer, q, {shape.n_heads, d});
  pass.tap(Site::kRotK, layer, k, {shape.n_kv_heads, d});

  store_kv(pass, layer, shape, k, v);
  const Rows z = pass.make(normalized.n, shape.n_heads * d);
  if (pass.changes(Site::kAttnScores, layer) || pass.changes(Site::kPattern, layer)) [[unlikely]] {
    attend_plain(pass, layer, shape, q, z);
  } else {
    attend(pass, layer, shape, q, z);
  }
  pass.tap(Site::kZ, layer, z, {shape.n_heads, d});
  tap_result(pass, layer, shape, z, weights.o);
  return z;
}

}  // namespace

Rows self_attention(Pass& pass, int layer, const AttentionShape& shape,
                    const AttentionWeights& weights, const Rope& rope, const Rope::Angles& angles,
                    const Input& normalized) {
  CUTAWAY_SPAN(span, "ops::self_attention", "x", normalized.view());
  const Rows z = heads(pass, layer, shape, weights, rope, angles, normalized);
  const Rows out = pass.make(normalized.n, weights.o.weight.out_features());
  if (pass.changes(Site::kResult, layer)) [[unlikely]] {
    project_heads(pass, layer, shape.n_heads, z, weights.o, out);
  } else {
    project_one(pass, z, weights.o, out);
  }
  CUTAWAY_OUT(span, "out", out.view());
  return out;
}

void self_attention_onto(Pass& pass, int layer, const AttentionShape& shape,
                         const AttentionWeights& weights, const Rope& rope,
                         const Rope::Angles& angles, const Input& normalized, const Rows& x) {
  CUTAWAY_SPAN(span, "ops::self_attention_onto", "x", normalized.view());
  const Rows z = heads(pass, layer, shape, weights, rope, angles, normalized);
  if (pass.changes(Site::kResult, layer)) [[unlikely]] {
    const Rows out = pass.make(x.n, x.d);
    project_heads(pass, layer, shape.n_heads, z, weights.o, out);
    add_residual(pass, kAfterAttention, layer, x, out);
  } else {
    project_onto(pass, kAfterAttention, layer, z, weights.o, x);
  }
  CUTAWAY_OUT(span, "resid_mid", x.view());
}

void add_residual(Pass& pass, const ResidualSites& sites, int layer, const Rows& x, const Rows& y,
                  float multiplier) {
  CUTAWAY_SPAN(span, "ops::add_residual", "x", x.view(), "y", y.view(), "multiplier", multiplier);
  CUTAWAY_CHECK(x.n == y.n && x.d == y.d);
  const auto add = [&](int64_t i) noexcept { pass.table.add(x.row(i), y.row(i), x.d, x.row(i)); };
  const bool apart = pass.changes(sites.out, layer);  // y must be whole before x gains it
  for_rows(pass, x.n, [&](int64_t i) noexcept {
    if (multiplier != 1) scale(y.row(i), y.d, multiplier);
    if (!apart) add(i);
  });
  pass.tap(sites.out, layer, y);
  if (apart) for_rows(pass, x.n, add);
  pass.tap(sites.residual, layer, x);
  CUTAWAY_OUT(span, "x", x.view());
}

namespace {

Rows select_logit_rows(Pass& pass, const Rows& x) {
  const auto& wanted = pass.batch.logit_rows;
  const Rows out = pass.make(static_cast<int64_t>(wanted.size()), x.d);
  for (int64_t i = 0; i < out.n; ++i) {
    std::memcpy(out.row(i), x.row(wanted[static_cast<size_t>(i)]),
                static_cast<size_t>(x.d) * sizeof(float));
  }
  return out;
}

// Row by row: logits exist for chosen rows only, and those need not be consecutive.
void tap_logits(Pass& pass, const Rows& logits) {
  if (!pass.watches(Site::kLogits, -1)) return;
  for (int64_t i = 0; i < logits.n; ++i) {
    const int64_t row = pass.batch.logit_rows[static_cast<size_t>(i)];
    const auto slice =
        std::find_if(pass.batch.slices.begin(), pass.batch.slices.end(),
                     [&](const Slice& s) { return row >= s.first_row && row < s.first_row + s.n; });
    CUTAWAY_CHECK(slice != pass.batch.slices.end());
    pass.tap_values(Site::kLogits, -1, *slice, slice->first_position + row - slice->first_row,
                    logits.row(i), Shape{1, logits.d});
  }
}

// `norm(rows)` is the final norm with its taps.
template <typename F>
Rows logits_of(Pass& pass, const Rows& x, const Linear& head, const LogitForm& form,
               const F& norm) {
  const bool whole =
      pass.watches(Site::kLnFinalScale, -1) || pass.watches(Site::kLnFinalNormalized, -1);
  const Rows normalized =
      whole ? select_logit_rows(pass, norm(x).floats) : norm(select_logit_rows(pass, x)).floats;
  const Rows out = pass.make(normalized.n, head.weight.out_features());
  if (out.n > 0) project_fine(pass, normalized, head, out);
  if (form.multiplier != 1 || form.soft_cap > 0) {
    // A row of the vocabulary is long: parts of it are shared out.
    constexpr int64_t kPart = 8192;
    const int64_t parts = (out.d + kPart - 1) / kPart;
    pass.pool.parallel_for(static_cast<size_t>(out.n * parts), [&](size_t chunk) noexcept {
      const int64_t row = static_cast<int64_t>(chunk) / parts;
      const int64_t first = static_cast<int64_t>(chunk) % parts * kPart;
      float* part = out.row(row) + first;
      const int64_t n = std::min(kPart, out.d - first);
      if (form.multiplier != 1) scale(part, n, form.multiplier);
      if (form.soft_cap > 0) pass.table.soft_cap(part, form.soft_cap, n, part);
    });
  }
  tap_logits(pass, out);
  return out;
}

}  // namespace

Rows unembed(Pass& pass, const Rows& x, const Vector& norm, float eps, const Linear& head,
             const LogitForm& form) {
  CUTAWAY_SPAN(span, "ops::unembed", "x", x.view(), "rows", pass.batch.logit_rows.size());
  const Rows out = logits_of(pass, x, head, form, [&](const Rows& rows) {
    return rms_norm(pass, kNormFinal, -1, rows, norm, eps);
  });
  CUTAWAY_OUT(span, "out", out.view());
  return out;
}

Rows unembed(Pass& pass, const Rows& x, const LayerNorm& norm, const Linear& head) {
  CUTAWAY_SPAN(span, "ops::unembed", "x", x.view(), "rows", pass.batch.logit_rows.size());
  const Rows out = logits_of(pass, x, head, {}, [&](const Rows& rows) {
    return layer_norm(pass, kNormFinal, -1, rows, norm);
  });
  CUTAWAY_OUT(span, "out", out.view());
  return out;
}

}  // namespace cutaway::ops
