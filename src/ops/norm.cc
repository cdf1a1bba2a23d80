#include "ops/norm.h"

#include "base/check.h"
#include "trace/trace.h"

namespace cutaway::ops {

Input rms_norm(Pass& pass, const NormSites& sites, int layer, const Rows& x, const Vector& weight,
               float eps, std::span<const Linear* const> readers) {
  CUTAWAY_SPAN(span, "ops::rms_norm", "x", x.view(), "eps", eps);
  CUTAWAY_CHECK(weight.n == x.d);
  if (sites.input) pass.tap(*sites.input, layer, x);
  const Rows out = pass.make(x.n, x.d);
  const Rows scale = pass.make(x.n, 1);
  const bool q8 = any_takes_q8(pass, readers);
  const kernels::Q8Output quantized = q8 ? make_q8(pass, x.n, x.d) : kernels::Q8Output{};
  for_rows(pass, x.n, [&](int64_t i) noexcept {
    *scale.row(i) = pass.table.rms_norm(x.row(i), weight.data, eps, x.d, out.row(i));
    if (q8) pass.table.quantize_q8(out.row(i), x.d, 1, x.d, 0, row_of(quantized, i));
  });
  pass.tap(sites.scale, layer, scale);
  if (pass.wants(sites.normalized, layer)) {
    const Scratch::Mark mark = pass.scratch.mark();
    const Rows normalized = pass.make(x.n, x.d);
    for (int64_t i = 0; i < x.n; ++i) {
      for (int64_t j = 0; j < x.d; ++j) normalized.row(i)[j] = x.row(i)[j] / *scale.row(i);
    }
    pass.tap(sites.normalized, layer, normalized);
    pass.scratch.rewind(mark);
  }
  CUTAWAY_OUT(span, "out", out.view(), "q8", q8);
  Input normalized = out;
  normalized.q8 = quantized.view();
  return normalized;
}

void rms_norm_parts(Pass& pass, const Rows& x, const Vector& weight, float eps) {
  CUTAWAY_SPAN(span, "ops::rms_norm_parts", "x", x.view(), "part", weight.n);
  CUTAWAY_CHECK(weight.n > 0 && x.d % weight.n == 0);
  for_rows(pass, x.n, [&](int64_t i) noexcept {
    for (float* part = x.row(i); part < x.row(i) + x.d; part += weight.n) {
      pass.table.rms_norm(part, weight.data, eps, weight.n, part);
    }
  });
  CUTAWAY_OUT(span, "x", x.view());
}

}  // namespace cutaway::ops
