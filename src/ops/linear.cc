#include "ops/linear.h"

#include <algorithm>

#include "base/check.h"
#include "trace/trace.h"

namespace cutaway::ops {
namespace {

// Chunks per thread: enough that a thread which loses its core for a while leaves work to others.
constexpr int64_t kChunksPerThread = 6;

bool takes_q8(const Pass& pass, const Matrix& weight) {
  return !pass.precise && pass.table.matmul_q8[static_cast<int>(weight.packed.layout)] != nullptr;
}

kernels::Q8Output make_q8(Pass& pass, int64_t n, int64_t d) {
  const int64_t blocks = d / kernels::kBlockK;
  return {pass.scratch.take<int8_t>(n * d), pass.scratch.take<float>(n * blocks),
          pass.scratch.take<int32_t>(n * blocks), pass.scratch.take<float>(n * blocks), d};
}

// Row i of the output.
kernels::Q8Output q8_row(const kernels::Q8Output& out, int64_t i) {
  const int64_t blocks = out.cols / kernels::kBlockK;
  return {out.q + i * out.cols, out.scale + i * blocks, out.sum + i * blocks,
          out.total + i * blocks, out.cols};
}

kernels::Q8Activations quantize(Pass& pass, const Rows& x) {
  const kernels::Q8Output out = make_q8(pass, x.n, x.d);
  for_rows(pass, x.n, [&](int64_t i) noexcept {
    pass.table.quantize_q8(x.row(i), x.d, 1, x.d, 0, q8_row(out, i));
  });
  return out.view();
}

void add_bias(const Vector& bias, const Rows& out, int64_t row_begin, int64_t row_end) noexcept {
  for (int64_t c = 0; c < out.n; ++c) {
    float* y = out.row(c);
    for (int64_t r = row_begin; r < row_end; ++r) y[r] += bias.data[r];
  }
}

}  // namespace

void project(Pass& pass, const Rows& x, std::span<const Projection> projections) {
  CUTAWAY_SPAN(span, "ops::project", "x", x.view(), "weights", projections.size());
  const Scratch::Mark mark = pass.scratch.mark();
  int64_t total_groups = 0;
  bool any_q8 = false;
  for (const Projection& p : projections) {
    const Matrix& w = p.linear->weight;
    CUTAWAY_CHECK(w.in_features() == x.d && p.out.n == x.n && p.out.d == w.out_features());
    total_groups += w.packed.groups();
    any_q8 = any_q8 || takes_q8(pass, w);
  }
  kernels::Q8Activations q8;
  if (any_q8) q8 = quantize(pass, x);

  const auto run_groups = [&](const Projection& p, int64_t begin, int64_t end) noexcept {
    const Matrix& w = p.linear->weight;
    const int layout = static_cast<int>(w.packed.layout);
    if (takes_q8(pass, w)) {
      pass.table.matmul_q8[layout](w.packed, begin, end, q8, x.n,
                                   p.out.data + begin * kernels::kGroupRows, p.out.d);
    } else {
      pass.table.matmul_f32[layout](w.packed, begin, end, x.data, x.d, x.n,
                                    p.out.data + begin * kernels::kGroupRows, p.out.d);
    }
    if (p.linear->bias.present()) {
      add_bias(p.linear->bias, p.out, begin * kernels::kGroupRows,
               std::min(end * kernels::kGroupRows, p.out.d));
    }
  };
  const int64_t chunk = std::max<int64_t>(1, total_groups / (pass.pool.size() * kChunksPerThread));
  const int64_t n_chunks = (total_groups + chunk - 1) / chunk;
  pass.pool.parallel_for(static_cast<size_t>(n_chunks), [&](size_t index) noexcept {
    int64_t begin = static_cast<int64_t>(index) * chunk;
    int64_t end = std::min(begin + chunk, total_groups);
    for (const Projection& p : projections) {
      const int64_t groups = p.linear->weight.packed.groups();
      if (begin < groups && begin < end) run_groups(p, begin, std::min(end, groups));
      begin = std::max<int64_t>(0, begin - groups);
      end -= groups;
      if (end <= 0) break;
    }
  });
  pass.scratch.rewind(mark);
  CUTAWAY_OUT(span, "out", projections[0].out.view());
}

}  // namespace cutaway::ops
