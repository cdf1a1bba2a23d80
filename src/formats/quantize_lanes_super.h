// The search for the scales of super-blocks of 256. Internal to formats/; see
// quantize_lanes_vectors.h.
#pragma once

#include "formats/quantize_lanes_blocks.h"

namespace cutaway::formats {
namespace {

CUTAWAY_LANES_INLINE float sum_of(F a) {
  return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}
CUTAWAY_LANES_INLINE float half(float a) { return f16_to_f32(f32_to_f16(a)); }

// 256 / N sub-blocks of N, as tiles of eight.
template <int N>
struct SuperTile {
  static constexpr int kTiles = 256 / N / kLanes;
  Tile<N> tile[kTiles];
  float unit, inverse_unit;
};
template <int N>
CUTAWAY_LANES_INLINE void load_super(const float* x, const float* w, SuperTile<N>& out) {
  float most = 0;
  for (int i = 0; i < 256; ++i) {
    const float a = x[i] < 0 ? -x[i] : x[i];
    most = a > most ? a : most;
  }
  out.unit = unit_of(most);
  out.inverse_unit = 1 / out.unit;
  for (int k = 0; k < SuperTile<N>::kTiles; ++k) {
    load_tile<N>(x + k * kLanes * N, w + k * kLanes * N, kLanes, splat(out.inverse_unit),
                 out.tile[k]);
  }
}

// The d of the file (a half) as it stands in the tile's units.
template <int N>
CUTAWAY_LANES_INLINE float stored_scale(const SuperTile<N>& super, float d) {
  return half(d * super.unit) * super.inverse_unit;
}

// value = d · s · grid(code), s in kLow … kHigh.
template <typename Grid, int N, int kLow, int kHigh>
struct SymmetricK {
  static constexpr int kTiles = SuperTile<N>::kTiles;
  F s[kTiles];  // integers
  float d, error;

  // The best s for d, from the neighbours of `near`, and the sums for a better d.
  CUTAWAY_LANES_INLINE void choose(const SuperTile<N>& super, const F* near, int reach,
                                   SymmetricK& out, float& xv, float& vv) {
    F all_error{}, all_xv{}, all_vv{};
    for (int k = 0; k < kTiles; ++k) {
      const Tile<N>& tile = super.tile[k];
      F best_error = splat(3e38f), best_s{}, best_xv{}, best_vv{};
      for (int r = -reach; r <= reach; ++r) {
        const F s = clamp(near[k] + splat(static_cast<float>(r)), kLow, kHigh);
        const F ds = s * splat(out.d), t = inverse(ds);
        F error{}, sum_xv{}, sum_vv{};
        for (int j = 0; j < N; ++j) {
          const F v = Grid::snap(tile.x[j] * t);
          const F off = tile.x[j] - ds * v;
          const F wv = tile.w[j] * v;
          error += tile.w[j] * off * off;
          sum_xv += wv * tile.x[j];
          sum_vv += wv * v;
        }
        const I better = error < best_error;
        best_error = better ? error : best_error;
        best_s = better ? s : best_s;
        best_xv = better ? sum_xv * s : best_xv;
        best_vv = better ? sum_vv * s * s : best_vv;
      }
      out.s[k] = best_s;
      all_error += best_error;
      all_xv += best_xv;
      all_vv += best_vv;
    }
    out.error = sum_of(all_error);
    xv = sum_of(all_xv);
    vv = sum_of(all_vv);
  }
};

template <typename Grid, int N, int kLow, int kHigh>
void symmetric_super(const float* x, const float* w, Effort effort, CodedSuperBlock& out) noexcept {
  using K = SymmetricK<Grid, N, kLow, kHigh>;
  constexpr int kTiles = K::kTiles;
  SuperTile<N> super;
  load_super<N>(x, w, super);
  K best{};
  best.error = 3e38f;
  // First the plain conversion, to be no worse; then the largest scale takes the last integer, or a
  // bit less than the last: with few integers that matters.
  const int starts = effort == Effort::kPlain ? 1 : kLow >= -32 ? 5 : 3;
  F scale[kTiles];
  float extreme = 0;
  for (int start = 0; start < starts; ++start) {
    if (start < 2) {
      extreme = 0;
      for (int k = 0; k < kTiles; ++k) {
        scale[k] = search_scale<Grid>(super.tile[k], start == 0 ? Effort::kPlain : effort);
        for (int l = 0; l < kLanes; ++l) {
          const float a = scale[k][l];
          extreme = a * a > extreme * extreme ? a : extreme;
        }
      }
    }
    K now{};
    const float less = 0.5f * static_cast<float>(start > 1 ? start - 1 : 0);
    now.d = stored_scale(super, extreme / (static_cast<float>(kLow) + less));
    const int rounds = start == 0 ? 1 : 3;
    for (int round = 0; round < rounds; ++round) {
      F near[kTiles];
      const float inverse_d = now.d != 0 ? 1 / now.d : 0;
      for (int k = 0; k < kTiles; ++k)
        near[k] = nearest(clamp(scale[k] * splat(inverse_d), kLow, kHigh));
      float xv, vv;
      K::choose(super, near, effort == Effort::kPlain ? 0 : 1, now, xv, vv);
      if (now.error < best.error) best = now;
      if (!(vv > 0)) break;
      const float d = stored_scale(super, xv / vv);
      if (d == now.d || d == 0) break;
      now.d = d;
    }
  }
  out.d = best.d * super.unit;
  out.m = 0;
  for (int k = 0; k < kTiles; ++k) {
    const F t = inverse(best.s[k] * splat(best.d));
    for (int l = 0; l < kLanes; ++l) {
      out.scale[k * kLanes + l] = static_cast<int32_t>(best.s[k][l]);
    }
    for (int j = 0; j < N; ++j) {
      const I code = Grid::code(super.tile[k].x[j] * t);
      for (int l = 0; l < kLanes; ++l) {
        out.code[(k * kLanes + l) * N + j] = static_cast<uint8_t>(code[l]);
      }
    }
  }
}

// value = d · s · code − m · o, code in 0 … kTop, s and o in 0 … kMost.
template <int kTop, int N, int kMost>
struct AffineK {
  static constexpr int kTiles = SuperTile<N>::kTiles;
  F s[kTiles], o[kTiles];
  float d, m, error;

  // Sums for the d and m of least error, the codes and integers as they are.
  struct Sums {
    float aa, ab, bb, xa, xb;
  };

  CUTAWAY_LANES_INLINE void choose(const SuperTile<N>& super, const F* near_s, const F* near_o,
                                   int reach, AffineK& out, Sums& sums) {
    F all_error{}, aa{}, ab{}, bb{}, xa{}, xb{};
    for (int k = 0; k < kTiles; ++k) {
      const Tile<N>& tile = super.tile[k];
      F best_error = splat(3e38f), best_s{}, best_o{};
      for (int r = -reach; r <= reach; ++r) {
        for (int p = -reach; p <= reach; ++p) {
          const F s = clamp(near_s[k] + splat(static_cast<float>(r)), 0, kMost);
          const F o = clamp(near_o[k] + splat(static_cast<float>(p)), 0, kMost);
          const F ds = s * splat(out.d), mo = o * splat(out.m), t = inverse(ds);
          F error{};
          for (int j = 0; j < N; ++j) {
            const F q = nearest(clamp((tile.x[j] + mo) * t, 0, kTop));
            const F off = tile.x[j] + mo - ds * q;
            error += tile.w[j] * off * off;
          }
          const I better = error < best_error;
          best_error = better ? error : best_error;
          best_s = better ? s : best_s;
          best_o = better ? o : best_o;
        }
      }
      out.s[k] = best_s;
      out.o[k] = best_o;
      all_error += best_error;
      const F ds = best_s * splat(out.d), mo = best_o * splat(out.m), t = inverse(ds);
      for (int j = 0; j < N; ++j) {
        const F a = best_s * nearest(clamp((tile.x[j] + mo) * t, 0, kTop));
        const F wa = tile.w[j] * a, wb = tile.w[j] * best_o;
        aa += wa * a;
        ab += wa * best_o;
        bb += wb * best_o;
        xa += wa * tile.x[j];
        xb += wb * tile.x[j];
      }
    }
    out.error = sum_of(all_error);
    sums = {sum_of(aa), sum_of(ab), sum_of(bb), sum_of(xa), sum_of(xb)};
  }
};

template <int kTop, int N, int kMost>
void affine_super(const float* x, const float* w, Effort effort, CodedSuperBlock& out) noexcept {
  using K = AffineK<kTop, N, kMost>;
  constexpr int kTiles = K::kTiles;
  SuperTile<N> super;
  load_super<N>(x, w, super);
  K best{};
  best.error = 3e38f;
  Line line[kTiles];
  float most_d = 0, most_m = 0;
  const int starts = effort == Effort::kPlain ? 1 : kMost <= 15 ? 4 : 2;  // as above
  for (int start = 0; start < starts; ++start) {
    if (start < 2) {
      most_d = most_m = 0;
      for (int k = 0; k < kTiles; ++k) {
        line[k] = search_line<kTop, true>(super.tile[k], start == 0 ? Effort::kPlain : effort);
        for (int l = 0; l < kLanes; ++l) {
          most_d = line[k].d[l] > most_d ? line[k].d[l] : most_d;
          most_m = -line[k].m[l] > most_m ? -line[k].m[l] : most_m;
        }
      }
    }
    const float last =
        static_cast<float>(kMost) - 0.5f * static_cast<float>(start > 1 ? start - 1 : 0);
    K now{};
    now.d = stored_scale(super, most_d / last);
    now.m = stored_scale(super, most_m / last);
    const int rounds = start == 0 ? 1 : 3;
    for (int round = 0; round < rounds; ++round) {
      F near_s[kTiles], near_o[kTiles];
      const float inverse_d = now.d != 0 ? 1 / now.d : 0, inverse_m = now.m != 0 ? 1 / now.m : 0;
      for (int k = 0; k < kTiles; ++k) {
        near_s[k] = nearest(clamp(line[k].d * splat(inverse_d), 0, kMost));
        near_o[k] = nearest(clamp(-line[k].m * splat(inverse_m), 0, kMost));
      }
      typename K::Sums s{};
      K::choose(super, near_s, near_o, effort == Effort::kPlain ? 0 : 1, now, s);
      if (now.error < best.error) best = now;
      // x ≈ d·a − m·b
      const float determinant = s.aa * s.bb - s.ab * s.ab;
      float d = s.aa > 0 ? s.xa / s.aa : 0, m = 0;
      if (determinant > 1e-6f * s.aa * s.bb) {
        d = (s.xa * s.bb - s.xb * s.ab) / determinant;
        m = (s.xa * s.ab - s.xb * s.aa) / determinant;
      }
      if (!(d > 0) || !(m >= 0)) break;
      d = stored_scale(super, d);
      m = stored_scale(super, m);
      if ((d == now.d && m == now.m) || d == 0) break;
      now.d = d;
      now.m = m;
    }
  }
  out.d = best.d * super.unit;
  out.m = best.m * super.unit;
  for (int k = 0; k < kTiles; ++k) {
    const F t = inverse(best.s[k] * splat(best.d)), mo = best.o[k] * splat(best.m);
    for (int l = 0; l < kLanes; ++l) {
      out.scale[k * kLanes + l] = static_cast<int32_t>(best.s[k][l]);
      out.min[k * kLanes + l] = static_cast<int32_t>(best.o[k][l]);
    }
    for (int j = 0; j < N; ++j) {
      const I code = integers(nearest(clamp((super.tile[k].x[j] + mo) * t, 0, kTop)));
      for (int l = 0; l < kLanes; ++l) {
        out.code[(k * kLanes + l) * N + j] = static_cast<uint8_t>(code[l]);
      }
    }
  }
}

}  // namespace
}  // namespace cutaway::formats
