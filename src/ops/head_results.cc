#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "kernels/layout.h"
#include "ops/attention.h"
#include "trace/trace.h"

namespace cutaway::ops {
namespace {

using kernels::kGroupRows;

// The columns of some heads, one matrix a head.
using HeadColumns = std::vector<kernels::PackedMatrix>;

// Where heads begin within blocks of the layout: dequantised, packed as Layout::kFloat.
HeadColumns unpack_by_head(Pass& pass, const Matrix& o, std::span<const int32_t> heads,
                           int64_t d_head) {
  const int64_t groups = o.packed.groups(), group_floats = kGroupRows * d_head;
  const auto n_heads = static_cast<int64_t>(heads.size());
  float* packed = pass.scratch.floats(n_heads * groups * group_floats);
  const Rows rows = pass.make(groups, o.in_features());
  for_rows(pass, groups, [&](int64_t g) noexcept {
    for (int64_t r = 0; r < kGroupRows; ++r) {
      const int64_t feature = g * kGroupRows + r;
      const bool there = feature < o.out_features();
      if (there) kernels::unpack_row(o.packed, feature, rows.row(g));
      for (int64_t h = 0; h < n_heads; ++h) {
        const float* from = rows.row(g) + heads[static_cast<size_t>(h)] * d_head;
        float* group = packed + (h * groups + g) * group_floats;
        for (int64_t i = 0; i < d_head; ++i) group[i * kGroupRows + r] = there ? from[i] : 0.0f;
      }
    }
  });
  HeadColumns out;
  for (int64_t h = 0; h < n_heads; ++h) {
    out.push_back({kernels::Layout::kFloat, o.out_features(), d_head,
                   reinterpret_cast<const uint8_t*>(packed + h * groups * group_floats)});
  }
  return out;
}

HeadColumns columns_by_head(Pass& pass, const Matrix& o, std::span<const int32_t> heads,
                            int64_t d_head) {
  HeadColumns out;
  for (const int32_t head : heads) {
    const auto columns = kernels::columns_of(o.packed, head * d_head, d_head);
    if (!columns.has_value()) return unpack_by_head(pass, o, heads, d_head);
    out.push_back(*columns);
  }
  return out;
}

std::vector<int32_t> all_heads(int64_t n) {
  std::vector<int32_t> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

}  // namespace

void show_result(Pass& pass, int layer, const AttentionShape& shape, const Rows& z,
                 const Linear& o) {
  CUTAWAY_SPAN(span, "ops::show_result", "z", z.view(), "heads", shape.n_heads);
  CUTAWAY_CHECK(o.weight.in_features() == z.d && z.d == shape.n_heads * shape.d_head);
  const trace::TapPart part = pass.part(trace::Site::kResult, layer);
  const std::vector<int32_t> all =
      part.heads.empty() ? all_heads(shape.n_heads) : std::vector<int32_t>();
  const std::span<const int32_t> heads = part.heads.empty() ? all : part.heads;
  const auto n_heads = static_cast<int64_t>(heads.size());
  const Scratch::Mark mark = pass.scratch.mark();
  const int64_t d_model = o.weight.out_features();
  const HeadColumns columns = columns_by_head(pass, o.weight, heads, shape.d_head);
  for (const Slice& slice : pass.batch.slices) {
    const int64_t begin = std::clamp<int64_t>(part.begin - slice.first_position, 0, slice.n);
    const int64_t n = std::clamp<int64_t>(part.end - slice.first_position, begin, slice.n) - begin;
    const int64_t first_row = slice.first_row + begin;
    const Scratch::Mark before = pass.scratch.mark();
    const Rows out = pass.make_tapped(trace::Site::kResult, layer, begin, n, n_heads * d_model);
    constexpr int64_t kRowsPerChunk = 96;  // the kernels dequantise once for as many
    const int64_t parts = (n + kRowsPerChunk - 1) / kRowsPerChunk;
    pass.pool.parallel_for(static_cast<size_t>(parts * n_heads), [&](size_t chunk) noexcept {
      const auto i = static_cast<int64_t>(chunk) / n_heads * kRowsPerChunk;
      const auto h = static_cast<int64_t>(chunk) % n_heads;
      const kernels::PackedMatrix& w = columns[static_cast<size_t>(h)];
      const auto multiply = pass.table.matmul_f32[static_cast<int>(w.layout)];
      multiply(w, 0, w.groups(),
               z.row(first_row + i) + heads[static_cast<size_t>(h)] * shape.d_head, z.d,
               std::min(kRowsPerChunk, n - i), out.row(i) + h * d_model, out.d);
    });
    trace::TapEvent event;
    event.run = slice.run;
    event.seq = slice.seq;
    event.site = trace::Site::kResult;
    event.layer = layer;
    event.first_position = static_cast<int32_t>(slice.first_position + begin);
    event.values = {out.data, Shape{n, n_heads, d_model}, 0};
    event.heads = part.heads;
    for (trace::Probe* probe : pass.probes) {
      if (n > 0 && probe->wants(event.site, layer)) probe->observe(event);
    }
    pass.scratch.rewind(before);
  }
  pass.scratch.rewind(mark);
  CUTAWAY_OUT(span, "heads", n_heads);
}

}  // namespace cutaway::ops
