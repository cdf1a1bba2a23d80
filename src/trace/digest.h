// What a tensor looked like, in a few numbers and a hash.
// A tensor without elements has zeros and the hash of no bytes. NaNs are counted and left out of
// the numbers; where every value is NaN the numbers are zero.
#pragma once

#include <cstdint>

#include "base/hash.h"
#include "tensor/tensor.h"

namespace cutaway::trace {

struct Digest {
  float min = 0, max = 0;  // over the values that are not NaN
  double mean = 0, l2 = 0;
  uint32_t nan_count = 0;
  int n_first = 0;
  float first[4] = {};  // the first n_first values of the first row
  Hash128 hash;         // XXH3-128 over the f32 bytes, row after row
};

Digest digest(const TensorView& tensor);

}  // namespace cutaway::trace
