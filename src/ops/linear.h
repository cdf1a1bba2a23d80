// Products of activations with weights that share an input.
#pragma once

#include <span>

#include "ops/pass.h"
#include "ops/weights.h"

namespace cutaway::ops {

struct Projection {
  const Linear* linear = nullptr;
  Rows out;  // {x.n, linear's out features}
};

// out = x · Wᵀ + bias for each projection. x is quantised to 8 bits once for all weights that take
// 8-bit activations, unless the pass is precise; threads divide the output rows.
void project(Pass& pass, const Rows& x, std::span<const Projection> projections);

inline void project(Pass& pass, const Rows& x, const Linear& linear, const Rows& out) {
  const Projection projection{&linear, out};
  project(pass, x, std::span(&projection, 1));
}

}  // namespace cutaway::ops
