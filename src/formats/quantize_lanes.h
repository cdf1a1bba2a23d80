// The search for the scales of quantised blocks: what each (super-)block's scales and codes should
// be, before a type's own packing. One text for every instruction set: eight sub-blocks are
// searched at once, one in each lane, and no sum crosses lanes, so that wider registers change the
// speed and no bit. Internal to formats/.
#pragma once

#include <cstdint>

namespace cutaway::formats {

// How much is tried. kPlain: the largest value takes the last code. kSearch: the scales of least
// weighted squared error among some thirty, refined.
enum class Effort : uint8_t { kPlain, kSearch };

// Eight blocks of 32: value = d · grid(code) + m.
struct CodedBlocks {
  float d[8], m[8];  // halves, exactly
  uint8_t code[8][32];
};

// A super-block of 256: value = d · scale · grid(code) − m · min, by sub-block.
struct CodedSuperBlock {
  float d, m;  // halves, exactly
  int32_t scale[16], min[16];
  uint8_t code[256];
};

// `x`: the values; `w`: how much each one's squared error counts, ≥ 0, of order 1 in the mean,
// never all zero in a sub-block that is not. `blocks` (1 … 8): those that are there, of 32 values
// each; the others' results are not set.
struct LaneSearch {
  using Blocks = void (*)(const float* x, const float* w, int blocks, Effort effort,
                          CodedBlocks& out) noexcept;
  using SuperBlock = void (*)(const float* x, const float* w, Effort effort,
                              CodedSuperBlock& out) noexcept;
  Blocks q4_0, q4_1, q5_0, q5_1, iq4_nl;
  Blocks mxfp4;  // d: a power of two
  SuperBlock q2_k, q3_k, q4_k, q5_k, q6_k, iq4_xs;
};

const LaneSearch& lane_search_base() noexcept;
// Null where the build has none.
const LaneSearch* lane_search_avx2() noexcept;
// The fastest that this machine runs.
const LaneSearch& lane_search() noexcept;

}  // namespace cutaway::formats
