// Random weights: the same numbers on every machine, for any number of threads and any order in
// which rows are made.
#pragma once

#include <cstdint>
#include <string_view>

namespace cutaway::model {

// What one tensor's numbers are drawn from: a seed and the tensor's name, so that layer 3 is the
// same in a file of four layers and in one of forty.
struct RandomTensor {
  RandomTensor(uint64_t seed, std::string_view name) noexcept;

  // Elements [first, first + n) of a row, first and n even: centre + spread · x, where x has mean 0
  // and variance 1 and is near normal: the sum of four uniform bytes, so |x| < 3.46. Integers from
  // a counter-based generator (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
  // generators", OOPSLA 2014), one multiplication and one addition in f32. Any thread.
  void fill(int64_t row, int64_t first, int64_t n, float centre, float spread,
            float* out) const noexcept;

 private:
  uint64_t state_;
};

}  // namespace cutaway::model
