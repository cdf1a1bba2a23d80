#include "formats/quantize_search.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "formats/quantize_pack.h"
#include "formats/quantize_row.h"

namespace cutaway::formats {
namespace {

constexpr int64_t kSuper = 256;

// How much a value's squared error counts where no importance is known. With every value alike, the
// least squared error of few codes moves the large values of a block, on which most depends, too
// far.
enum class OwnWeight {
  kAlike,
  kLarger,     // √(mean² + x²), mean being that of the row's magnitudes
  kMagnitude,  // |x|: for codes that lie closer about zero, as those of a bell curve do
};
OwnWeight own_weight(DType type) noexcept {
  switch (type) {
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return OwnWeight::kMagnitude;
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ3_K:
    case DType::kQ4_K:
      return OwnWeight::kLarger;
    default:
      return OwnWeight::kAlike;
  }
}

// The weights of n ≤ 256 values. `own_scale`: 1 / mean; 0 where it is not known.
void weigh(const float* x, const float* importance, float importance_scale, OwnWeight own,
           float own_scale, int64_t n, float* w) noexcept {
  for (int64_t i = 0; i < n; ++i) {
    const float size = std::fabs(x[i]) * own_scale;
    w[i] = importance != nullptr                        ? importance[i] * importance_scale
           : own == OwnWeight::kAlike || own_scale == 0 ? 1
           : own == OwnWeight::kMagnitude               ? size
                                                        : std::sqrt(1 + size * size);
  }
}

LaneSearch::Blocks blocks_of(const LaneSearch& search, DType type) noexcept {
  switch (type) {
    case DType::kQ4_0:
      return search.q4_0;
    case DType::kQ4_1:
      return search.q4_1;
    case DType::kQ5_0:
      return search.q5_0;
    case DType::kQ5_1:
      return search.q5_1;
    case DType::kIQ4_NL:
      return search.iq4_nl;
    case DType::kMXFP4:
      return search.mxfp4;
    default:
      return nullptr;
  }
}

LaneSearch::SuperBlock super_block_of(const LaneSearch& search, DType type) noexcept {
  switch (type) {
    case DType::kQ2_K:
      return search.q2_k;
    case DType::kQ3_K:
      return search.q3_k;
    case DType::kQ4_K:
      return search.q4_k;
    case DType::kQ5_K:
      return search.q5_k;
    case DType::kQ6_K:
      return search.q6_k;
    case DType::kIQ4_XS:
      return search.iq4_xs;
    default:
      return nullptr;
  }
}

double mean_of(const float* values, int64_t n) noexcept {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(values[i]);
  return sum / static_cast<double>(n);
}

void run(const LaneSearch& search, DType type, Effort effort, const float* x,
         const float* importance, int64_t n, uint8_t* out) noexcept {
  const LaneSearch::Blocks blocks = blocks_of(search, type);
  const LaneSearch::SuperBlock super = super_block_of(search, type);
  CUTAWAY_CHECK((blocks != nullptr || super != nullptr) && n >= 0 &&
                n % dtype_traits(type).block_elements == 0);
  if (n == 0) return;
  const double mean = importance == nullptr ? 0 : mean_of(importance, n);
  if (!(mean > 0)) importance = nullptr;
  const auto importance_scale = static_cast<float>(mean > 0 ? 1 / mean : 1);
  const OwnWeight own = own_weight(type);
  float own_scale = 0;
  if (importance == nullptr && own != OwnWeight::kAlike) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(std::fabs(x[i]));
    if (sum > 0) own_scale = static_cast<float>(static_cast<double>(n) / sum);
    if (!std::isfinite(own_scale)) own_scale = 0;
  }
  float w[kSuper];
  for (int64_t at = 0; at < n; at += kSuper) {
    const int64_t here = std::min(kSuper, n - at);
    weigh(x + at, importance == nullptr ? nullptr : importance + at, importance_scale, own,
          own_scale, here, w);
    if (super != nullptr) {
      CodedSuperBlock coded{};
      super(x + at, w, effort, coded);
      out = pack_super_block(type, coded, out);
    } else {
      CodedBlocks coded;
      const int count = static_cast<int>(here / 32);
      blocks(x + at, w, count, effort, coded);
      out = pack_blocks(type, coded, count, out);
    }
  }
}

}  // namespace

bool is_searched_type(DType type) noexcept {
  return blocks_of(lane_search_base(), type) != nullptr ||
         super_block_of(lane_search_base(), type) != nullptr;
}

void quantize_row_searched(DType type, const float* values, const float* importance, int64_t n,
                           uint8_t* out) noexcept {
  quantize_row_searched(lane_search(), type, values, importance, n, out);
}

void quantize_row_searched(const LaneSearch& search, DType type, const float* values,
                           const float* importance, int64_t n, uint8_t* out) noexcept {
  if (is_searched_type(type)) {
    run(search, type, Effort::kSearch, values, importance, n, out);
  } else {
    quantize_row(type, values, n, out);
  }
}

void quantize_row_plain(DType type, const float* values, int64_t n, uint8_t* out) noexcept {
  run(lane_search(), type, Effort::kPlain, values, nullptr, n, out);
}

float largest_value(DType type) noexcept {
  constexpr float kLargestHalf = 65504, kLargestFloat = 3.4028234e38f;
  switch (type) {
    case DType::kF32:
    case DType::kBF16:
      return 3.38e38f;  // bfloat16 rounds what is above to infinity
    case DType::kMXFP4:
      return kLargestFloat / 8;
    default:
      return kLargestHalf;
  }
}

}  // namespace cutaway::formats
