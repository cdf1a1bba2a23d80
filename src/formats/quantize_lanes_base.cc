// The search for scales as every processor runs it.
#include "base/cpu_features.h"
#include "formats/quantize_lanes_text.h"

namespace cutaway::formats {

const LaneSearch& lane_search_base() noexcept { return kLaneSearch; }

#ifndef CUTAWAY_LANES_AVX2
const LaneSearch* lane_search_avx2() noexcept { return nullptr; }
#endif

const LaneSearch& lane_search() noexcept {
  const LaneSearch* avx2 = cpu_features().avx2 ? lane_search_avx2() : nullptr;
  return avx2 != nullptr ? *avx2 : kLaneSearch;
}

}  // namespace cutaway::formats
