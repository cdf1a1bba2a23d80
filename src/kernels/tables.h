// The tables as objects, for select.cc. Internal to kernels/: others ask select_table().
#pragma once

#include "kernels/table.h"

namespace cutaway::kernels {

extern const KernelTable kRefTable;
// Calling an entry needs AVX2, FMA and F16C.
extern const KernelTable kAvx2Table;

}  // namespace cutaway::kernels
