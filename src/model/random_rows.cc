#include "model/random_rows.h"

#include "base/check.h"
#include "base/hash.h"
#include "trace/trace.h"

namespace cutaway::model {
namespace {

// The i-th output of the generator that begins at `state`.
uint64_t splitmix64(uint64_t state, uint64_t i) noexcept {
  uint64_t z = state + (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

// Of the sum of four uniform bytes: mean 510, variance 4 · (256² − 1) / 12 = 21845.
constexpr int32_t kMean = 510;
constexpr float kDeviation = 147.80054f;

}  // namespace

RandomTensor::RandomTensor(uint64_t seed, std::string_view name) noexcept {
  CUTAWAY_SPAN(span, "model::RandomTensor", "seed", seed, "name", name);
  state_ = splitmix64(seed, xxh3_128(name.data(), name.size()).low);
  CUTAWAY_OUT(span, "state", state_);
}

void RandomTensor::fill(int64_t row, int64_t first, int64_t n, float centre, float spread,
                        float* out) const noexcept {
  CUTAWAY_CHECK(first % 2 == 0 && n % 2 == 0);
  constexpr uint64_t kEven = 0x00FF00FF00FF00FFu;
  const uint64_t state = splitmix64(state_, static_cast<uint64_t>(row));
  const float scale = spread / kDeviation;
  for (int64_t i = 0; i < n; i += 2) {
    const uint64_t bits = splitmix64(state, static_cast<uint64_t>(first + i) / 2);
    uint64_t sum = (bits & kEven) + (bits >> 8 & kEven);  // four lanes of two bytes each
    sum += sum >> 16;                                     // lanes 0 and 2 of four
    const auto low = static_cast<int32_t>(sum & 0xFFFF) - kMean;
    const auto high = static_cast<int32_t>(sum >> 32 & 0xFFFF) - kMean;
    out[i] = centre + scale * static_cast<float>(low);
    out[i + 1] = centre + scale * static_cast<float>(high);
  }
}

}  // namespace cutaway::model
