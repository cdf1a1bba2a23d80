#include "base/check.h"
#include "kernels/layout.h"
#include "ops/attention.h"
#include "trace/trace.h"

namespace cutaway::ops {
namespace {

using kernels::kGroupRows;

// The columns of one head of the output projection, dequantised and packed as Layout::kFloat.
kernels::PackedMatrix head_columns(const Matrix& o, int64_t head, int64_t d_head,
                                   const float* packed) {
  const int64_t groups = o.packed.groups();
  return {kernels::Layout::kFloat, o.out_features(), d_head,
          reinterpret_cast<const uint8_t*>(packed + head * groups * kGroupRows * d_head)};
}

// Every head's columns, one head after the other.
const float* unpack_by_head(Pass& pass, const Matrix& o, int64_t n_heads, int64_t d_head) {
  const int64_t groups = o.packed.groups(), group_floats = kGroupRows * d_head;
  float* packed = pass.scratch.floats(n_heads * groups * group_floats);
  const Rows rows = pass.make(groups, o.in_features());
  for_rows(pass, groups, [&](int64_t g) noexcept {
    for (int64_t r = 0; r < kGroupRows; ++r) {
      const int64_t feature = g * kGroupRows + r;
      const bool there = feature < o.out_features();
      if (there) kernels::unpack_row(o.packed, feature, rows.row(g));
      for (int64_t i = 0; i < o.in_features(); ++i) {
        float* group = packed + (i / d_head * groups + g) * group_floats;
        group[i % d_head * kGroupRows + r] = there ? rows.row(g)[i] : 0.0f;
      }
    }
  });
  return packed;
}

}  // namespace

void tap_result(Pass& pass, int layer, const AttentionShape& shape, const Rows& z,
                const Linear& o) {
  // An editor's pass shows the ones that it sums up: project_heads().
  if (!pass.wants(trace::Site::kResult, layer) || pass.changes(trace::Site::kResult, layer)) return;
  CUTAWAY_SPAN(span, "ops::tap_result", "z", z.view(), "heads", shape.n_heads);
  CUTAWAY_CHECK(o.weight.in_features() == z.d && z.d == shape.n_heads * shape.d_head);
  const Scratch::Mark mark = pass.scratch.mark();
  const int64_t d_model = o.weight.out_features();
  const float* packed = unpack_by_head(pass, o.weight, shape.n_heads, shape.d_head);
  const Rows out = pass.make(z.n, shape.n_heads * d_model);
  const auto multiply = pass.table.matmul_f32[static_cast<int>(kernels::Layout::kFloat)];
  for_rows(pass, z.n, [&](int64_t i) noexcept {
    for (int64_t head = 0; head < shape.n_heads; ++head) {
      const kernels::PackedMatrix w = head_columns(o.weight, head, shape.d_head, packed);
      multiply(w, 0, w.groups(), z.row(i) + head * shape.d_head, z.d, 1,
               out.row(i) + head * d_model, out.d);
    }
  });
  pass.tap(trace::Site::kResult, layer, out, {shape.n_heads, d_model});
  pass.scratch.rewind(mark);
  CUTAWAY_OUT(span, "out", out.view());
}

}  // namespace cutaway::ops
