#include <limits>
#include <vector>

#include "kernels/math.h"
#include "ops/attention.h"
#include "trace/trace.h"

namespace cutaway::ops {
namespace {

// scores {n_heads, n, n_keys}: scaled, soft-capped, −inf where a query does not see the key.
void compute_scores(const Slice& slice, int layer, const AttentionShape& shape, const Rows& q,
                    int64_t n_keys, float* scores) {
  std::vector<float> key(static_cast<size_t>(shape.d_head));
  for (int64_t kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
    for (int64_t k = 0; k < n_keys; ++k) {
      const kernels::KvTile tile = slice.kv->tile(layer, kv_head, k / kernels::kTilePositions);
      kernels::load_key(tile.type, tile.k, shape.d_head, k % kernels::kTilePositions, key.data());
      for (int64_t r = 0; r < slice.n * shape.group(); ++r) {
        const int64_t row = r / shape.group();
        const int64_t head = kv_head * shape.group() + r % shape.group();
        const int64_t position = slice.first_position + row;
        const bool seen = k <= position && (shape.window == 0 || position - k < shape.window);
        const float* query = q.row(slice.first_row + row) + head * shape.d_head;
        float score = 0;
        for (int64_t i = 0; i < shape.d_head; ++i) score += query[i] * key[static_cast<size_t>(i)];
        score *= shape.scale;
        if (shape.soft_cap > 0) score = shape.soft_cap * kernels::tanh_f32(score / shape.soft_cap);
        scores[(head * slice.n + row) * n_keys + k] =
            seen ? score : -std::numeric_limits<float>::infinity();
      }
    }
  }
}

void softmax(float* row, int64_t n) {
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) max = row[i] > max ? row[i] : max;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    row[i] = kernels::exp_f32(row[i] - max);
    sum += row[i];
  }
  for (int64_t i = 0; i < n; ++i) row[i] = static_cast<float>(row[i] / sum);
}

}  // namespace

void tap_attention(Pass& pass, int layer, const AttentionShape& shape, const Rows& q) {
  const bool scores_wanted = pass.wants(trace::Site::kAttnScores, layer);
  const bool pattern_wanted = pass.wants(trace::Site::kPattern, layer);
  if (!scores_wanted && !pattern_wanted) return;
  CUTAWAY_SPAN(span, "ops::tap_attention", "q", q.view());
  for (const Slice& slice : pass.batch.slices) {
    const int64_t n_keys = slice.first_position + slice.n;
    std::vector<float> values(static_cast<size_t>(shape.n_heads * slice.n * n_keys));
    compute_scores(slice, layer, shape, q, n_keys, values.data());
    trace::TapEvent event;
    event.run = slice.run;
    event.seq = slice.seq;
    event.layer = layer;
    event.first_position = static_cast<int32_t>(slice.first_position);
    event.values = {values.data(), Shape{shape.n_heads, slice.n, n_keys}, 0};
    const auto show = [&](trace::Site site) {
      event.site = site;
      for (trace::Probe* probe : pass.probes) {
        if (probe->wants(site, layer)) probe->observe(event);
      }
    };
    if (scores_wanted) show(trace::Site::kAttnScores);
    if (!pattern_wanted) continue;
    for (int64_t r = 0; r < shape.n_heads * slice.n; ++r)
      softmax(values.data() + r * n_keys, n_keys);
    show(trace::Site::kPattern);
  }
  CUTAWAY_OUT(span, "heads", shape.n_heads);
}

}  // namespace cutaway::ops
