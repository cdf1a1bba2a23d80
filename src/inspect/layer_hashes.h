// A hash of the residual stream after every layer, for every position: what a recording keeps, so
// that any tensor that is computed again can be proved to be the same.
#pragma once

#include <cstdint>
#include <vector>

#include "trace/probe.h"

namespace cutaway::inspect {

// Watches one sequence. A hash is the low half of the XXH3-128 of the d_model f32 values of one
// position at hook_resid_post of one layer: chunks, threads and traces do not change it.
class LayerHashes final : public trace::Probe {
 public:
  explicit LayerHashes(int64_t n_layers) : n_layers_(n_layers) {}

  bool wants(trace::Site site, int) const override { return site == trace::Site::kResidPost; }
  void observe(const trace::TapEvent& event) override;

  // The first position that was seen; those before it were in the cache already.
  int64_t first_position() const { return first_position_ < 0 ? 0 : first_position_; }
  // [position − first_position()][layer]
  const std::vector<std::vector<uint64_t>>& hashes() const { return hashes_; }

 private:
  int64_t n_layers_;
  int64_t first_position_ = -1;
  std::vector<std::vector<uint64_t>> hashes_;
};

}  // namespace cutaway::inspect
