// The tables as objects, for select.cc. Internal to kernels/: others ask select_table().
#pragma once

#include "kernels/table.h"

namespace cutaway::kernels {

extern const KernelTable kRefTable;
// Calling an entry needs AVX2, FMA and F16C.
extern const KernelTable kAvx2Table;
// Calling an entry needs those and AVX-512 F, BW, VL, DQ and VNNI.
extern const KernelTable kAvx512Table;
// Calling an entry needs ARMv8.2-A's SIMD with the dot product.
extern const KernelTable kNeonTable;

}  // namespace cutaway::kernels
