// The router of a mixture of experts: which experts each token goes to, and with what weights.
#pragma once

#include <vector>

#include "ops/linear.h"

namespace cutaway::ops {

struct Routing {
  int64_t n = 0, used = 0;      // rows, experts a row
  Rows logits;                  // {n, experts}
  std::vector<int32_t> expert;  // [n][used], by falling logit, ties by id
  Rows weights;                 // {n, used}
};

// logits = x · router, in f32 whatever the pass. The `used` largest of each row are chosen; a NaN
// counts as smaller than everything. Weights are the softmax over all logits, or when `normalize`
// over the chosen ones. Precondition: 1 ≤ used ≤ experts. Fires the router's taps and, where a
// trace is on, an event `moe.route` per row: the experts, their weights, the probability left to
// the others (`rest`), and by how much the last chosen logit exceeds the next (`margin`).
Routing route(Pass& pass, int layer, const Linear& router, int64_t used, bool normalize,
              const Rows& x);

}  // namespace cutaway::ops
