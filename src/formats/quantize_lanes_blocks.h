// The search for the scales of blocks of 32. Internal to formats/; see quantize_lanes_vectors.h.
#pragma once

#include "formats/quantize_lanes.h"
#include "formats/quantize_lanes_vectors.h"

namespace cutaway::formats {
namespace {

// ---- value = d · grid(code) ----------------------------------------------------------------

// For the scale 1/t: Σ w x v and Σ w v², v the nearest of the grid to x·t. The d of least error is
// their ratio; what it takes off the squared error is xv² / vv.
struct Products {
  F xv, vv;
};
template <typename Grid, int N>
CUTAWAY_LANES_INLINE Products products(const Tile<N>& tile, F t) {
  Products out{};
  for (int j = 0; j < N; ++j) {
    const F v = Grid::snap(tile.x[j] * t);
    const F wv = tile.w[j] * v;
    out.xv += wv * tile.x[j];
    out.vv += wv * v;
  }
  return out;
}

// Eighths of the grid's last value by which the largest element is placed beyond or before it.
template <typename Grid, int N>
CUTAWAY_LANES_INLINE F search_scale(const Tile<N>& tile, Effort effort) {
  F extreme{};
  for (int j = 0; j < N; ++j) {
    extreme = magnitude(tile.x[j]) > magnitude(extreme) ? tile.x[j] : extreme;
  }
  const F unit = inverse(extreme);
  if (effort == Effort::kPlain) return extreme * splat(1 / Grid::kLowest);
  F best_gain{}, best_d = extreme * splat(1 / Grid::kLowest);
  const auto consider = [&](F t) __attribute__((always_inline)) {
    const Products p = products<Grid>(tile, t);
    const F d = p.xv * inverse(p.vv);
    const F gain = p.xv * d;
    const I better = gain > best_gain;
    best_gain = better ? gain : best_gain;
    best_d = better ? d : best_d;
  };
  for (int side = 0; side < 2; ++side) {
    const float last = side == 0 ? Grid::kLowest : Grid::kHighest;
    for (int i = -6; i <= 6; ++i) {
      const float place = last * (1 + Grid::kStep * static_cast<float>(i));
      consider(unit * splat(place));
    }
  }
  for (int i = 0; i < 3; ++i) consider(inverse(best_d));
  return best_d;
}

template <typename Grid>
CUTAWAY_LANES_INLINE void store_codes(const Tile<32>& tile, F t, int blocks, CodedBlocks& out) {
  for (int j = 0; j < 32; ++j) {
    const I code = Grid::code(tile.x[j] * t);
    for (int l = 0; l < blocks; ++l) out.code[l][j] = static_cast<uint8_t>(code[l]);
  }
}

CUTAWAY_LANES_INLINE F units(F most) {
  F out{};
  for (int l = 0; l < kLanes; ++l) out[l] = unit_of(most[l]);
  return out;
}

// The halves beside a half: `step` (±1) places away from zero.
CUTAWAY_LANES_INLINE F next_half(F a, int step) {
  F out{};
  for (int l = 0; l < kLanes; ++l) {
    const uint16_t bits = f32_to_f16(a[l]);
    const bool end = step < 0 ? (bits & 0x7FFFu) == 0 : (bits & 0x7FFFu) >= 0x7BFFu;
    out[l] = f16_to_f32(static_cast<uint16_t>(end ? bits : bits + step));
  }
  return out;
}

// Scales are stored as halves, and small ones are coarse: the half that serves best is not always
// the nearest. `choices`: in the values' own units.
template <int kChoices, typename ErrorOf>
CUTAWAY_LANES_INLINE F best_of(const F (&choices)[kChoices], const ErrorOf& error_of) {
  F best = choices[0], best_error = error_of(0);
  for (int i = 1; i < kChoices; ++i) {
    const F error = error_of(i);
    const I better = error < best_error;
    best_error = better ? error : best_error;
    best = better ? choices[i] : best;
  }
  return best;
}

template <typename Grid>
void symmetric_blocks(const float* x, const float* w, int blocks, Effort effort,
                      CodedBlocks& out) noexcept {
  Tile<32> tile;
  const F unit = units(largest_magnitude<32>(x, blocks)), inverse_unit = inverse(unit);
  load_tile<32>(x, w, blocks, inverse_unit, tile);
  F d = as_half(search_scale<Grid>(tile, Effort::kPlain) * unit);
  if (effort == Effort::kSearch) {
    const F found = as_half(search_scale<Grid>(tile, effort) * unit);
    const F choices[] = {d, found, next_half(found, 1), next_half(found, -1)};
    d = best_of(choices, [&](int i) __attribute__((always_inline)) {
      const F scale = choices[i] * inverse_unit, t = inverse(scale);
      F error{};
      for (int j = 0; j < 32; ++j) {
        const F off = tile.x[j] - scale * Grid::snap(tile.x[j] * t);
        error += tile.w[j] * off * off;
      }
      return error;
    });
  }
  for (int l = 0; l < blocks; ++l) out.d[l] = d[l], out.m[l] = 0;
  store_codes<Grid>(tile, inverse(d) * unit, blocks, out);
}

// The scale is a power of two: 2^(e − 128) for e in 0 … 254.
void fp4_blocks(const float* x, const float* w, int blocks, Effort effort,
                CodedBlocks& out) noexcept {
  Tile<32> tile;
  const F most = largest_magnitude<32>(x, blocks);
  const F unit = units(most);
  load_tile<32>(x, w, blocks, inverse(unit), tile);
  F best_error{}, best_d{};
  const int tried = effort == Effort::kPlain ? 1 : 3;
  for (int i = 0; i < tried; ++i) {
    // With d = unit / 8 the largest lies at 8 … 16, the grid's last value being 12.
    const float scale = i == 0 ? 0.125f : i == 1 ? 0.25f : 0.0625f;
    const F d = splat(scale), t = splat(1 / scale);
    F error{};
    for (int j = 0; j < 32; ++j) {
      const F off = tile.x[j] - d * FP4::snap(tile.x[j] * t);
      error += tile.w[j] * off * off;
    }
    const I better = i == 0 ? I{} - 1 : error < best_error;
    best_error = better ? error : best_error;
    best_d = better ? d : best_d;
  }
  F d = best_d * unit;
  // Under 2^−128 the grid has no scale: 2^−126 is the smallest that stays a normal number here.
  d = larger(d, splat(1.17549435e-38f));
  for (int l = 0; l < blocks; ++l) out.d[l] = most[l] > 0 ? d[l] : 0, out.m[l] = 0;
  store_codes<FP4>(tile, inverse(d) * unit, blocks, out);
}

// ---- value = d · code + m, code in 0 … kTop ------------------------------------------------

struct Line {
  F d, m;
};

// Sums that do not depend on the codes.
struct Moments {
  F w, x, xx;
};
template <int N>
CUTAWAY_LANES_INLINE Moments moments(const Tile<N>& tile) {
  Moments out{};
  for (int j = 0; j < N; ++j) {
    const F wx = tile.w[j] * tile.x[j];
    out.w += tile.w[j];
    out.x += wx;
    out.xx += wx * tile.x[j];
  }
  return out;
}

// The line of least error for the codes nearest to (x − line.m) · t, and that error. With
// kNoPositive its m is 0 at most.
template <int kTop, bool kNoPositive, int N>
CUTAWAY_LANES_INLINE Line fit_line(const Tile<N>& tile, const Moments& s, F low, F t, F& error) {
  F q1{}, q2{}, xq{};
  for (int j = 0; j < N; ++j) {
    const F q = nearest(clamp((tile.x[j] - low) * t, 0, kTop));
    const F wq = tile.w[j] * q;
    q1 += wq;
    q2 += wq * q;
    xq += wq * tile.x[j];
  }
  const F determinant = inverse(s.w * q2 - q1 * q1);
  Line line{(s.w * xq - s.x * q1) * determinant, (q2 * s.x - q1 * xq) * determinant};
  if (kNoPositive) {
    const I positive = line.m > F{};
    line.d = positive ? xq * inverse(q2) : line.d;
    line.m = positive ? F{} : line.m;
  }
  error = s.xx + line.d * (line.d * q2 - 2 * xq) + line.m * (line.m * s.w - 2 * s.x) +
          2 * line.d * line.m * q1;
  error = line.d > F{} ? error : splat(3e38f);
  return line;
}

template <int kTop, bool kNoPositive, int N>
CUTAWAY_LANES_INLINE Line search_line(const Tile<N>& tile, Effort effort) {
  F low = kNoPositive ? F{} : tile.x[0], high = tile.x[0];
  for (int j = 0; j < N; ++j) {
    low = smaller(low, tile.x[j]);
    high = larger(high, tile.x[j]);
  }
  const F range = high - low, unit = inverse(range);
  Line best{range * splat(1.0f / kTop), low};
  if (effort == Effort::kPlain) return best;
  const Moments s = moments(tile);
  F best_error = splat(3e38f);
  const auto consider = [&](F from, F t) __attribute__((always_inline)) {
    F error;
    const Line line = fit_line<kTop, kNoPositive>(tile, s, from, t, error);
    const I better = error < best_error;
    best_error = better ? error : best_error;
    best.d = better ? line.d : best.d;
    best.m = better ? line.m : best.m;
  };
  constexpr int kTried = 8;
  constexpr float kStep = kTop <= 3 ? 0.09f : kTop <= 15 ? 0.2f : 0.25f;
  for (int i = -kTried; i <= kTried; ++i) {
    const float place =
        static_cast<float>(kTop) + kStep * static_cast<float>(i) + (kTop <= 3 ? 0.3f : 0.0f);
    consider(low, unit * splat(place));
    // The range shortened at its lower end by half a step.
    if (i % 2 == 0) {
      consider(low + splat(0.5f) * range * splat(1 / place), unit * splat(place));
    }
  }
  for (int i = 0; i < 3; ++i) consider(best.m, inverse(best.d));
  return best;
}

template <int kTop>
void affine_blocks(const float* x, const float* w, int blocks, Effort effort,
                   CodedBlocks& out) noexcept {
  Tile<32> tile;
  const F unit = units(largest_magnitude<32>(x, blocks)), inverse_unit = inverse(unit);
  load_tile<32>(x, w, blocks, inverse_unit, tile);
  const Line plain = search_line<kTop, false>(tile, Effort::kPlain);
  F d = as_half(plain.d * unit), m = as_half(plain.m * unit);
  if (effort == Effort::kSearch) {
    const Line line = search_line<kTop, false>(tile, effort);
    const F found_d = as_half(line.d * unit), found_m = as_half(line.m * unit);
    const F plain_m = m, ds[] = {d, found_d, next_half(found_d, 1), next_half(found_d, -1)};
    F best_error = splat(3e38f);
    for (int i = 0; i < 4; ++i) {
      const F m_here = i == 0 ? plain_m : found_m;
      const F scale = ds[i] * inverse_unit, from = m_here * inverse_unit, t = inverse(scale);
      F error{};
      for (int j = 0; j < 32; ++j) {
        const F q = nearest(clamp((tile.x[j] - from) * t, 0, kTop));
        const F off = tile.x[j] - from - scale * q;
        error += tile.w[j] * off * off;
      }
      const I better = error < best_error;
      best_error = better ? error : best_error;
      d = better ? ds[i] : d;
      m = better ? m_here : m;
    }
  }
  for (int l = 0; l < blocks; ++l) out.d[l] = d[l], out.m[l] = m[l];
  const F t = inverse(d) * unit, from = m * inverse_unit;
  for (int j = 0; j < 32; ++j) {
    const I code = integers(nearest(clamp((tile.x[j] - from) * t, 0, kTop)));
    for (int l = 0; l < blocks; ++l) out.code[l][j] = static_cast<uint8_t>(code[l]);
  }
}

}  // namespace
}  // namespace cutaway::formats
