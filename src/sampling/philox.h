// Philox 4×32-10, the counter-based generator. Source: Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011); checked against the authors' known-answer vectors.
#pragma once

#include <array>
#include <cstdint>

namespace cutaway::sampling {

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace cutaway::sampling
