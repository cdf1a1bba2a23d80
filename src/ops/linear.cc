#include "ops/linear.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "trace/trace.h"

namespace cutaway::ops {
namespace {

using kernels::kBlockK;
using kernels::kGroupRows;

// Chunks per thread: enough that a thread which loses its core for a while leaves work to others.
constexpr int64_t kChunksPerThread = 6;

void add_bias(const Vector& bias, int64_t first, int64_t rows, int64_t n, float* y,
              int64_t y_stride) noexcept {
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t r = 0; r < rows; ++r) y[c * y_stride + r] += bias.data[first + r];
  }
}

kernels::Q8Activations from_row(const kernels::Q8Activations& x, int64_t i) {
  const int64_t blocks = x.cols / kBlockK;
  return {x.q + i * x.cols, x.scale + i * blocks, x.sum + i * blocks, x.total + i * blocks, x.cols};
}

kernels::Q8Activations quantize(Pass& pass, const Rows& x) {
  const kernels::Q8Output out = make_q8(pass, x.n, x.d);
  for_rows(pass, x.n, [&](int64_t i) noexcept {
    pass.table.quantize_q8(x.row(i), x.d, 1, x.d, 0, row_of(out, i));
  });
  return out.view();
}

// Rows 2i and 2i + 1: the two terms of token i.
kernels::Q8Activations quantize_twice(Pass& pass, const Rows& x) {
  const kernels::Q8Output out = make_q8(pass, 2 * x.n, x.d);
  const Rows rest = pass.make(x.n, x.d);
  for_rows(pass, x.n, [&](int64_t i) noexcept {
    const kernels::Q8Output first = row_of(out, 2 * i);
    pass.table.quantize_q8(x.row(i), x.d, 1, x.d, 0, first);
    float* left = rest.row(i);
    for (int64_t k = 0; k < x.d; ++k) {
      left[k] = x.row(i)[k] - first.scale[k / kBlockK] * static_cast<float>(first.q[k]);
    }
    pass.table.quantize_q8(left, x.d, 1, x.d, 0, row_of(out, 2 * i + 1));
  });
  return out.view();
}

// Runs body(begin, end) noexcept over parts of [0, n_groups) on the threads. Even parts: kernels
// that take two groups at a time are slower with a lone one.
template <typename F>
void for_groups(Pass& pass, int64_t n_groups, F&& body) {
  const int64_t step =
      std::max<int64_t>(2, n_groups / (pass.pool.size() * kChunksPerThread) / 2 * 2);
  pass.pool.parallel_for(static_cast<size_t>((n_groups + step - 1) / step),
                         [&](size_t chunk) noexcept {
                           const int64_t begin = static_cast<int64_t>(chunk) * step;
                           body(begin, std::min(begin + step, n_groups));
                         });
}

void run(Pass& pass, const Input& x, std::span<const Projection> projections) {
  int64_t total_groups = 0;
  for (const Projection& p : projections) {
    const Matrix& w = p.linear->weight;
    CUTAWAY_CHECK(w.in_features() == x.d && p.out.n == x.n && p.out.d == w.out_features());
    total_groups += w.packed.groups();
  }
  for_groups(pass, total_groups, [&](int64_t begin, int64_t end) noexcept {
    for (const Projection& p : projections) {
      const int64_t groups = p.linear->weight.packed.groups();
      if (begin < groups && begin < end) {
        multiply(pass, *p.linear, x, 0, x.n, begin, std::min(end, groups),
                 p.out.data + begin * kGroupRows, p.out.d);
      }
      begin = std::max<int64_t>(0, begin - groups);
      end -= groups;
      if (end <= 0) break;
    }
  });
}

// The product by itself, for editors to change before the residual stream gains it.
void project_then_add(Pass& pass, const ResidualSites& sites, int layer, const Input& x,
                      const Linear& linear, const Rows& residual) {
  CUTAWAY_SPAN(span, "ops::project_then_add", "x", x.view(), "residual", residual.view());
  const Scratch::Mark mark = pass.scratch.mark();
  const Rows out = pass.make(x.n, residual.d);
  project_one(pass, x, linear, out);
  pass.tap(sites.out, layer, out);
  for_rows(pass, x.n, [&](int64_t i) noexcept {
    pass.table.add(residual.row(i), out.row(i), residual.d, residual.row(i));
  });
  pass.tap(sites.residual, layer, residual);
  pass.scratch.rewind(mark);
  CUTAWAY_OUT(span, "residual", residual.view());
}

}  // namespace

Input quantized_for(Pass& pass, const Input& x, std::span<const Linear* const> readers) {
  if (pass.watcher != nullptr) [[unlikely]] {
    CUTAWAY_CHECK(pass.precise);
    for (const Linear* reader : readers) pass.watcher->product(reader->weight.packed, x.floats);
  }
  Input out = x;
  if (x.q8.q == nullptr && any_takes_q8(pass, readers)) out.q8 = quantize(pass, x.floats);
  return out;
}

void multiply(const Pass& pass, const Linear& linear, const Input& x, int64_t c0, int64_t n,
              int64_t group_begin, int64_t group_end, float* y, int64_t y_stride) noexcept {
  const kernels::PackedMatrix& w = linear.weight.packed;
  const auto layout = static_cast<int>(w.layout);
  if (takes_q8(pass, linear.weight)) {
    pass.table.matmul_q8[layout](w, group_begin, group_end, from_row(x.q8, c0), n, y, y_stride);
  } else {
    pass.table.matmul_f32[layout](w, group_begin, group_end, x.floats.row(c0), x.d, n, y, y_stride);
  }
  if (linear.bias.present()) {
    const int64_t first = group_begin * kGroupRows;
    add_bias(linear.bias, first, std::min(group_end * kGroupRows, w.rows) - first, n, y, y_stride);
  }
}

void project(Pass& pass, const Input& x, std::span<const Projection> projections) {
  CUTAWAY_SPAN(span, "ops::project", "x", x.view(), "weights", projections.size());
  const Scratch::Mark mark = pass.scratch.mark();
  Input ready = x;
  for (const Projection& p : projections) ready = quantized_for(pass, ready, {&p.linear, 1});
  run(pass, ready, projections);
  pass.scratch.rewind(mark);
  CUTAWAY_OUT(span, "out", projections[0].out.view());
}

void project_onto(Pass& pass, const ResidualSites& sites, int layer, const Input& x,
                  const Linear& linear, const Rows& residual) {
  CUTAWAY_SPAN(span, "ops::project_onto", "x", x.view(), "residual", residual.view());
  CUTAWAY_CHECK(linear.weight.in_features() == x.d && residual.n == x.n &&
                residual.d == linear.weight.out_features());
  if (pass.changes(sites.out, layer)) [[unlikely]] {
    project_then_add(pass, sites, layer, x, linear, residual);
    return;
  }
  const Scratch::Mark mark = pass.scratch.mark();
  Rows out;  // the product alone, when a probe asks
  if (pass.wants(sites.out, layer)) out = pass.make_tapped(sites.out, layer, residual.d);
  const Linear* const reader = &linear;
  const Input ready = quantized_for(pass, x, {&reader, 1});
  // A product of a few groups and tokens, while it is in the first cache.
  constexpr int64_t kTileFloats = 3072, kMaxTileRows = 512;
  for_groups(pass, linear.weight.packed.groups(), [&](int64_t begin, int64_t end) noexcept {
    float y[kTileFloats];
    for (int64_t g = begin; g < end; g += kMaxTileRows / kGroupRows) {
      const int64_t g_end = std::min(g + kMaxTileRows / kGroupRows, end);
      const int64_t first = g * kGroupRows;
      const int64_t rows = std::min(g_end * kGroupRows, residual.d) - first;
      const int64_t tokens = kTileFloats / rows;
      for (int64_t c0 = 0; c0 < x.n; c0 += tokens) {
        const int64_t n = std::min(tokens, x.n - c0);
        multiply(pass, linear, ready, c0, n, g, g_end, y, rows);
        for (int64_t c = 0; c < n; ++c) {
          float* to = residual.row(c0 + c) + first;
          pass.table.add(to, y + c * rows, rows, to);
          if (out.data != nullptr) {
            std::memcpy(out.row(c0 + c) + first, y + c * rows,
                        static_cast<size_t>(rows) * sizeof(float));
          }
        }
      }
    }
  });
  if (out.data != nullptr) pass.tap(sites.out, layer, out);
  pass.tap(sites.residual, layer, residual);
  pass.scratch.rewind(mark);
  CUTAWAY_OUT(span, "residual", residual.view());
}

void project_fine(Pass& pass, const Rows& x, const Linear& linear, const Rows& out) {
  CUTAWAY_SPAN(span, "ops::project_fine", "x", x.view());
  if (!takes_q8(pass, linear.weight)) {
    project_one(pass, x, linear, out);
    CUTAWAY_OUT(span, "out", out.view());
    return;
  }
  const Matrix& w = linear.weight;
  CUTAWAY_CHECK(w.in_features() == x.d && out.n == x.n && out.d == w.out_features());
  const Scratch::Mark mark = pass.scratch.mark();
  Input terms;
  terms.n = 2 * x.n;
  terms.d = x.d;
  terms.q8 = quantize_twice(pass, x);
  const Linear without_bias{w, {}};
  // The terms' products of a few groups and tokens, before they are added up.
  constexpr int64_t kTokens = 16, kGroups = 8, kRows = kGroups * kGroupRows;
  for_groups(pass, w.packed.groups(), [&](int64_t begin, int64_t end) noexcept {
    float y[2 * kTokens * kRows];
    for (int64_t g = begin; g < end; g += kGroups) {
      const int64_t g_end = std::min(g + kGroups, end);
      const int64_t rows = std::min(g_end * kGroupRows, out.d) - g * kGroupRows;
      for (int64_t c0 = 0; c0 < x.n; c0 += kTokens) {
        const int64_t n = std::min(kTokens, x.n - c0);
        multiply(pass, without_bias, terms, 2 * c0, 2 * n, g, g_end, y, kRows);
        for (int64_t c = 0; c < n; ++c) {
          pass.table.add(y + 2 * c * kRows, y + (2 * c + 1) * kRows, rows,
                         out.row(c0 + c) + g * kGroupRows);
        }
      }
    }
    if (linear.bias.present()) {
      const int64_t first = begin * kGroupRows;
      add_bias(linear.bias, first, std::min(end * kGroupRows, out.d) - first, out.n,
               out.data + first, out.d);
    }
  });
  pass.scratch.rewind(mark);
  CUTAWAY_OUT(span, "out", out.view());
}

}  // namespace cutaway::ops
