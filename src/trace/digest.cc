#include "trace/digest.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cutaway::trace {
namespace {

// Fixed lanes, so that the result does not depend on how the compiler vectorises the sums.
constexpr int kLanes = 8;

struct Lanes {
  float min[kLanes], max[kLanes];
  double sum[kLanes] = {}, squares[kLanes] = {};
  uint32_t nans[kLanes] = {};

  Lanes() {
    std::fill_n(min, kLanes, std::numeric_limits<float>::infinity());
    std::fill_n(max, kLanes, -std::numeric_limits<float>::infinity());
  }
  void add(int lane, float x) noexcept {
    min[lane] = x < min[lane] ? x : min[lane];  // false for NaN
    max[lane] = x > max[lane] ? x : max[lane];
    const double value = x == x ? x : 0.0F;
    sum[lane] += value;
    squares[lane] += value * value;
    nans[lane] += x == x ? 0 : 1;
  }
  void add_row(const float* x, int64_t n) noexcept {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) add(lane, x[i + lane]);
    }
    for (int lane = 0; i < n; ++i, ++lane) add(lane, x[i]);
  }
};

Hash128 hash_rows(const TensorView& tensor) {
  const int64_t n = tensor.row_elements();
  const size_t row_bytes = static_cast<size_t>(n) * sizeof(float);
  const auto rows = static_cast<size_t>(tensor.rows());
  if (tensor.row_stride == 0 || tensor.row_stride == n || rows <= 1) {
    return xxh3_128(tensor.data, row_bytes * rows);
  }
  StreamHash hash;
  for (int64_t i = 0; i < tensor.rows(); ++i) hash.update(tensor.row(i), row_bytes);
  return hash.digest();
}

}  // namespace

Digest digest(const TensorView& tensor) {
  Digest d;
  d.hash = hash_rows(tensor);
  const int64_t elements = tensor.shape.elements();
  if (elements == 0) return d;
  Lanes lanes;
  for (int64_t i = 0; i < tensor.rows(); ++i) lanes.add_row(tensor.row(i), tensor.row_elements());
  d.n_first = static_cast<int>(std::min<int64_t>(4, tensor.row_elements()));
  std::copy_n(tensor.row(0), d.n_first, d.first);
  double sum = 0, squares = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    sum += lanes.sum[lane];
    squares += lanes.squares[lane];
    d.nan_count += lanes.nans[lane];
  }
  const int64_t numbers = elements - d.nan_count;
  if (numbers == 0) return d;
  d.min = *std::min_element(lanes.min, lanes.min + kLanes);
  d.max = *std::max_element(lanes.max, lanes.max + kLanes);
  d.mean = sum / static_cast<double>(numbers);
  d.l2 = std::sqrt(squares);
  return d;
}

}  // namespace cutaway::trace
