// Scales and codes in the bits of their type. Internal to formats/.
#pragma once

#include <cstdint>

#include "formats/quantize_lanes.h"
#include "tensor/dtype.h"

namespace cutaway::formats {

// Each returns the byte after the last that it wrote. Preconditions: a type of 32 (256) elements a
// block; codes and scales in the type's range.
uint8_t* pack_blocks(DType type, const CodedBlocks& coded, int blocks, uint8_t* out) noexcept;
uint8_t* pack_super_block(DType type, const CodedSuperBlock& coded, uint8_t* out) noexcept;

}  // namespace cutaway::formats
