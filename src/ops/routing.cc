#include "ops/routing.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>

#include "base/check.h"
#include "kernels/math.h"
#include "trace/trace.h"

namespace cutaway::ops {
namespace {

using kernels::kGroupRows;
using trace::Site;

// In f32, with the same kernel in every pass: a choice between experts must not hang on how
// activations were rounded.
Rows router_logits(Pass& pass, const Linear& router, const Rows& x) {
  const kernels::PackedMatrix& w = router.weight.packed;
  CUTAWAY_SPAN(span, "ops::router_logits", "x", x.view(), "experts", w.rows);
  const Rows out = pass.make(x.n, w.rows);
  const auto product = pass.table.matmul_f32[static_cast<int>(w.layout)];
  constexpr int64_t kTokens = 64;
  const int64_t blocks = (x.n + kTokens - 1) / kTokens;
  pass.pool.parallel_for(static_cast<size_t>(blocks * w.groups()), [&](size_t chunk) noexcept {
    const int64_t g = static_cast<int64_t>(chunk) / blocks;
    const int64_t c0 = static_cast<int64_t>(chunk) % blocks * kTokens;
    const int64_t n = std::min(kTokens, x.n - c0), first = g * kGroupRows;
    product(w, g, g + 1, x.row(c0), x.d, n, out.row(c0) + first, out.d);
    if (!router.bias.present()) return;
    const int64_t end = std::min(first + kGroupRows, w.rows);
    for (int64_t c = c0; c < c0 + n; ++c) {
      for (int64_t e = first; e < end; ++e) out.row(c)[e] += router.bias.data[e];
    }
  });
  CUTAWAY_OUT(span, "logits", out.view());
  return out;
}

// The `used` largest of n logits, in falling order; of equal ones the lower id first.
void choose(const float* logits, int64_t n, int64_t used, int32_t* ids) noexcept {
  int64_t kept = 0;
  for (int64_t e = 0; e < n; ++e) {
    // `a before b` unless b is larger, or a is no number.
    const auto comes_first = [&](int32_t id) {
      return logits[id] >= logits[e] || !(logits[e] == logits[e]);
    };
    if (kept == used && comes_first(ids[used - 1])) continue;
    int64_t at = kept < used ? kept++ : used - 1;
    for (; at > 0 && !comes_first(ids[at - 1]); --at) ids[at] = ids[at - 1];
    ids[at] = static_cast<int32_t>(e);
  }
}

void weigh(const float* logits, int64_t n, const int32_t* ids, int64_t used, bool normalize,
           float* weights) noexcept {
  const float max = logits[ids[0]];
  float sum = 0;
  for (int64_t r = 0; r < used; ++r) weights[r] = kernels::exp_f32(logits[ids[r]] - max);
  if (normalize) {
    for (int64_t r = 0; r < used; ++r) sum += weights[r];
  } else {
    for (int64_t e = 0; e < n; ++e) sum += kernels::exp_f32(logits[e] - max);
  }
  for (int64_t r = 0; r < used; ++r) weights[r] /= sum;
}

// The record of one row's decision.
void record(const float* logits, int64_t n, const int32_t* ids, const float* weights,
            int64_t used) {
  const float max = logits[ids[0]];
  double all = 0, chosen = 0;
  float next = -std::numeric_limits<float>::infinity();
  for (int64_t e = 0; e < n; ++e) {
    const double p = kernels::exp_f64(static_cast<double>(logits[e]) - max);
    all += p;
    if (std::find(ids, ids + used, e) != ids + used) {
      chosen += p;
    } else {
      next = std::max(next, logits[e]);
    }
  }
  std::string text;
  for (int64_t r = 0; r < used; ++r) {
    char number[32];
    std::snprintf(number, sizeof number, "%s%.4g", r == 0 ? "" : " ",
                  static_cast<double>(weights[r]));
    text += number;
  }
  trace::event("moe.route", "experts", std::vector<int32_t>(ids, ids + used), "weights", text,
               "rest", 1 - chosen / all, "margin", logits[ids[used - 1]] - next, "logits",
               TensorView{logits, Shape{n}, 0});
}

void record_rows(const Pass& pass, const Routing& routing) {
  for (const Slice& slice : pass.batch.slices) {
    for (int64_t i = 0; i < slice.n; ++i) {
      trace::Coordinates at = trace::t_context.at;
      at.seq = slice.seq;
      at.position = static_cast<int32_t>(slice.first_position + i);
      const trace::At here(at);
      const int64_t row = slice.first_row + i;
      record(routing.logits.row(row), routing.logits.d, routing.expert.data() + row * routing.used,
             routing.weights.row(row), routing.used);
    }
  }
}

}  // namespace

Routing route(Pass& pass, int layer, const Linear& router, int64_t used, bool normalize,
              const Rows& x) {
  CUTAWAY_SPAN(span, "ops::route", "x", x.view(), "used", used, "normalize", normalize);
  Routing out;
  out.n = x.n;
  out.used = used;
  out.logits = router_logits(pass, router, x);
  CUTAWAY_CHECK(used >= 1 && used <= out.logits.d);
  pass.tap(Site::kRouterLogits, layer, out.logits);
  out.weights = pass.make(x.n, used);
  out.expert.resize(static_cast<size_t>(x.n * used));
  for_rows(pass, x.n, [&](int64_t i) noexcept {
    int32_t* ids = out.expert.data() + i * used;
    choose(out.logits.row(i), out.logits.d, used, ids);
    weigh(out.logits.row(i), out.logits.d, ids, used, normalize, out.weights.row(i));
  });
  if (pass.wants(Site::kExpertIndices, layer)) {
    const Scratch::Mark mark = pass.scratch.mark();
    const Rows ids = pass.make(x.n, used);
    for (size_t i = 0; i < out.expert.size(); ++i) ids.data[i] = static_cast<float>(out.expert[i]);
    pass.tap(Site::kExpertIndices, layer, ids);
    pass.scratch.rewind(mark);
  }
  pass.tap(Site::kExpertWeights, layer, out.weights);
  if (trace::enabled()) record_rows(pass, out);
  CUTAWAY_OUT(span, "logits", out.logits.view(), "weights", out.weights.view());
  return out;
}

}  // namespace cutaway::ops
