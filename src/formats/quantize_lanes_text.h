// The text of quantize_lanes.h's search; each .cc that includes it compiles it for one instruction
// set.
#pragma once

#include "formats/quantize_lanes_super.h"

namespace cutaway::formats {
namespace {

constexpr LaneSearch kLaneSearch = {
    symmetric_blocks<Uniform<-8, 7>>,
    affine_blocks<15>,
    symmetric_blocks<Uniform<-16, 15>>,
    affine_blocks<31>,
    symmetric_blocks<IQ4>,
    fp4_blocks,
    affine_super<3, 16, 15>,
    symmetric_super<Uniform<-4, 3>, 16, -32, 31>,
    affine_super<15, 32, 63>,
    affine_super<31, 32, 63>,
    symmetric_super<Uniform<-32, 31>, 16, -128, 127>,
    symmetric_super<IQ4, 32, -32, 31>,
};

}  // namespace
}  // namespace cutaway::formats
