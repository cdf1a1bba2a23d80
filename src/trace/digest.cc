#include "trace/digest.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace cutaway::trace {
namespace {

// Fixed lanes, so that the result does not depend on how the compiler vectorises the sums.
constexpr int kLanes = 8;

struct Lanes {
  float min[kLanes], max[kLanes];
  double sum[kLanes] = {}, squares[kLanes] = {};
  int32_t nans[kLanes] = {};  // of one row: at most 2^31 elements a lane

  Lanes() {
    std::fill_n(min, kLanes, std::numeric_limits<float>::infinity());
    std::fill_n(max, kLanes, -std::numeric_limits<float>::infinity());
  }
};

// A digest reads every tensor of a traced pass: with 256-bit vectors where the processor has them
// (the operations and their order are the same, so the bits are too).
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define CUTAWAY_WIDE_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define CUTAWAY_WIDE_VECTORS
#endif

// Element i of a row goes to lane i % kLanes. NaNs are counted, and add 0.
CUTAWAY_WIDE_VECTORS void add_row(const float* x, int64_t n, Lanes& lanes) {
  constexpr int kWidth = 4, kParts = kLanes / kWidth;
  using Floats = float __attribute__((vector_size(kWidth * sizeof(float))));
  using Masks = int32_t __attribute__((vector_size(kWidth * sizeof(int32_t))));
  using Doubles = double __attribute__((vector_size(kWidth * sizeof(double))));
  Floats min[kParts], max[kParts];
  Doubles sum[kParts], squares[kParts];
  Masks nans[kParts];
  std::memcpy(min, lanes.min, sizeof min);
  std::memcpy(max, lanes.max, sizeof max);
  std::memcpy(sum, lanes.sum, sizeof sum);
  std::memcpy(squares, lanes.squares, sizeof squares);
  std::memcpy(nans, lanes.nans, sizeof nans);
  for (int64_t i = 0; i < n; i += kLanes) {
    Floats v[kParts];
    if (i + kLanes <= n) {
      std::memcpy(v, x + i, sizeof v);
    } else {
      // What is missing becomes NaN, and its counts are taken back below.
      float rest[kLanes];
      std::fill_n(rest, kLanes, std::numeric_limits<float>::quiet_NaN());
      std::copy(x + i, x + n, rest);
      std::memcpy(v, rest, sizeof v);
    }
    for (int part = 0; part < kParts; ++part) {
      min[part] = v[part] < min[part] ? v[part] : min[part];  // false for NaN
      max[part] = v[part] > max[part] ? v[part] : max[part];
      const Masks is_number = v[part] == v[part];  // −1 or 0
      const auto number = reinterpret_cast<Floats>(reinterpret_cast<Masks>(v[part]) & is_number);
      const Doubles value = __builtin_convertvector(number, Doubles);
      sum[part] += value;
      squares[part] += value * value;
      nans[part] += 1 + is_number;
    }
  }
  std::memcpy(lanes.min, min, sizeof min);
  std::memcpy(lanes.max, max, sizeof max);
  std::memcpy(lanes.sum, sum, sizeof sum);
  std::memcpy(lanes.squares, squares, sizeof squares);
  std::memcpy(lanes.nans, nans, sizeof nans);
  for (int64_t lane = n % kLanes; lane != 0 && lane < kLanes; ++lane) --lanes.nans[lane];
}

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

Digest compute(const TensorView& tensor, const Hash128& hash) {
  Digest d;
  d.hash = hash;
  const int64_t elements = tensor.shape.elements();
  Lanes lanes;
  for (int64_t i = 0; i < tensor.rows(); ++i) add_row(tensor.row(i), tensor.row_elements(), lanes);
  d.n_first = static_cast<int>(std::min<int64_t>(4, tensor.row_elements()));
  std::copy_n(tensor.row(0), d.n_first, d.first);
  double sum = 0, squares = 0;
  int64_t nans = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    sum += lanes.sum[lane];
    squares += lanes.squares[lane];
    nans += lanes.nans[lane];
  }
  d.nan_count = static_cast<uint32_t>(nans);
  const int64_t numbers = elements - nans;
  if (numbers == 0) return d;
  d.min = *std::min_element(lanes.min, lanes.min + kLanes);
  d.max = *std::max_element(lanes.max, lanes.max + kLanes);
  d.mean = sum / static_cast<double>(numbers);
  d.l2 = std::sqrt(squares);
  return d;
}

// One tensor is the OUT of a function, then of its caller, then the IN of the next: the numbers are
// looked up by what has to be computed anyway, the hash of the bytes.
struct Known {
  int64_t row_elements = -1;
  Digest digest;
};
constexpr size_t kKnown = 32;  // a power of two
thread_local Known t_known[kKnown];

}  // namespace

Digest digest(const TensorView& tensor) {
  const Hash128 hash = hash_rows(tensor);
  if (tensor.shape.elements() == 0) {
    Digest d;
    d.hash = hash;
    return d;
  }
  Known& known = t_known[hash.low % kKnown];
  // n_first depends on the rows' length too.
  if (known.row_elements != tensor.row_elements() || known.digest.hash != hash) {
    known = {tensor.row_elements(), compute(tensor, hash)};
  }
  return known.digest;
}

}  // namespace cutaway::trace
