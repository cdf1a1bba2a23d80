#include "ops/norm.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "trace/trace.h"

namespace cutaway::ops {

namespace {

// One row: its mean (0 where a norm takes none away) and what the rest is divided by.
struct Statistics {
  float mean, scale;
};

// What a norm multiplies by and adds last.
struct Affine {
  const float* weight;
  const float* bias;  // null: none
};

// x less its mean, divided by its scale: hook_normalized.
void show_normalized(Pass& pass, const Rows& x, const Rows& mean, const Rows& scale,
                     const Rows& out) noexcept {
  for_rows(pass, x.n, [&](int64_t i) noexcept {
    const float* from = x.row(i);
    float* to = out.row(i);
    const float less = *mean.row(i), by = *scale.row(i);
    for (int64_t j = 0; j < x.d; ++j) to[j] = (from[j] - less) / by;
  });
}

bool same_bits(float a, float b) noexcept {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// Lets editors change scale and normalized values, and computes again the elements of `out` that
// follow from changed ones: all others keep the bits of the norm's own kernel.
void edit_norm(Pass& pass, const NormSites& sites, int layer, const Rows& x, const Rows& mean,
               const Rows& scale, const Affine& affine, const Rows& out) {
  CUTAWAY_SPAN(span, "ops::edit_norm", "x", x.view());
  const Scratch::Mark mark = pass.scratch.mark();
  const Rows own_scale = pass.make(x.n, 1);
  const Rows normalized = pass.make(x.n, x.d), own = pass.make(x.n, x.d);
  std::memcpy(own_scale.data, scale.data, static_cast<size_t>(x.n) * sizeof(float));
  pass.tap(sites.scale, layer, scale);
  show_normalized(pass, x, mean, scale, normalized);
  std::memcpy(own.data, normalized.data, static_cast<size_t>(x.n * x.d) * sizeof(float));
  pass.tap(sites.normalized, layer, normalized);
  for_rows(pass, x.n, [&](int64_t i) noexcept {
    const bool whole = !same_bits(*scale.row(i), *own_scale.row(i));
    for (int64_t j = 0; j < x.d; ++j) {
      const float value = normalized.row(i)[j];
      if (!whole && same_bits(value, own.row(i)[j])) continue;
      out.row(i)[j] = value * affine.weight[j];
      if (affine.bias != nullptr) out.row(i)[j] += affine.bias[j];
    }
  });
  pass.scratch.rewind(mark);
  CUTAWAY_OUT(span, "out", out.view());
}

// `one(x, out)` norms a row and returns its statistics.
template <typename F>
Input norm_rows(Pass& pass, const NormSites& sites, int layer, const Rows& x,
                std::span<const Linear* const> readers, const Affine& affine, const F& one) {
  if (sites.input) pass.tap(*sites.input, layer, x);
  const Rows out = pass.make(x.n, x.d);
  const Rows scale = pass.make(x.n, 1);
  const Rows mean = pass.make(x.n, 1);
  const bool edited = pass.changes(sites.scale, layer) || pass.changes(sites.normalized, layer);
  const bool q8 = !edited && any_takes_q8(pass, readers);
  const kernels::Q8Output quantized = q8 ? make_q8(pass, x.n, x.d) : kernels::Q8Output{};
  for_rows(pass, x.n, [&](int64_t i) noexcept {
    const Statistics found = one(x.row(i), out.row(i));
    *scale.row(i) = found.scale;
    *mean.row(i) = found.mean;
    if (q8) pass.table.quantize_q8(out.row(i), x.d, 1, x.d, 0, row_of(quantized, i));
  });
  if (edited) [[unlikely]] {
    edit_norm(pass, sites, layer, x, mean, scale, affine, out);
    return any_takes_q8(pass, readers) ? quantized_for(pass, out, readers) : Input(out);
  }
  pass.tap(sites.scale, layer, scale);
  if (pass.wants(sites.normalized, layer)) {
    const Scratch::Mark mark = pass.scratch.mark();
    const Rows normalized =
        x.n == pass.rows() ? pass.make_tapped(sites.normalized, layer, x.d) : pass.make(x.n, x.d);
    show_normalized(pass, x, mean, scale, normalized);
    pass.tap(sites.normalized, layer, normalized);
    pass.scratch.rewind(mark);
  }
  Input result = out;
  result.q8 = quantized.view();
  return result;
}

Statistics layer_norm_row(const float* x, const LayerNorm& norm, int64_t n, float* out) noexcept {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]);
  const double mean = sum / static_cast<double>(n);
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double from_mean = static_cast<double>(x[i]) - mean;
    squares += from_mean * from_mean;
  }
  const double variance = squares / static_cast<double>(n);
  const Statistics found{static_cast<float>(mean),
                         static_cast<float>(std::sqrt(variance + static_cast<double>(norm.eps)))};
  for (int64_t i = 0; i < n; ++i) {
    out[i] = (x[i] - found.mean) / found.scale * norm.weight.data[i] + norm.bias.data[i];
  }
  return found;
}

}  // namespace

Input rms_norm(Pass& pass, const NormSites& sites, int layer, const Rows& x, const Vector& weight,
               float eps, std::span<const Linear* const> readers) {
  CUTAWAY_SPAN(span, "ops::rms_norm", "x", x.view(), "eps", eps);
  CUTAWAY_CHECK(weight.n == x.d);
  const Input out =
      norm_rows(pass, sites, layer, x, readers, {weight.data, nullptr},
                [&](const float* row, float* to) noexcept {
                  return Statistics{0, pass.table.rms_norm(row, weight.data, eps, x.d, to)};
                });
  CUTAWAY_OUT(span, "out", out.view(), "q8", out.q8.q != nullptr);
  return out;
}

Input layer_norm(Pass& pass, const NormSites& sites, int layer, const Rows& x,
                 const LayerNorm& norm, std::span<const Linear* const> readers) {
  CUTAWAY_SPAN(span, "ops::layer_norm", "x", x.view(), "eps", norm.eps);
  CUTAWAY_CHECK(norm.weight.n == x.d && norm.bias.n == x.d);
  const Input out = norm_rows(
      pass, sites, layer, x, readers, {norm.weight.data, norm.bias.data},
      [&](const float* row, float* to) noexcept { return layer_norm_row(row, norm, x.d, to); });
  CUTAWAY_OUT(span, "out", out.view(), "q8", out.q8.q != nullptr);
  return out;
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
