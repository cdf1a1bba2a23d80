// The same for AVX2, whose registers hold eight lanes.
#include "formats/quantize_lanes_text.h"

namespace cutaway::formats {

const LaneSearch* lane_search_avx2() noexcept { return &kLaneSearch; }

}  // namespace cutaway::formats
