// Loops that only multiply and add, in registers: the most that an instruction set's arithmetic
// units do, which `bench` holds the kernels against.
#pragma once

#include <cstdint>

#include "kernels/table.h"

namespace cutaway::kernels {

struct ArithmeticProbe {
  const char* table;  // the name of the kernel table that computes with these instructions
  const char* int8_instructions;
  const char* f32_instructions;
  // Does `rounds` rounds of multiply-adds that do not wait for one another, on the calling thread.
  // Returns the operations done, two per multiply-add. int8: 8-bit factors, sums of 16 or 32 bits
  // as the table's products take them.
  int64_t (*int8)(int64_t rounds) noexcept;
  int64_t (*f32)(int64_t rounds) noexcept;
};

// The probe of a table; the plain C++ one of "ref" where a table has none of its own.
const ArithmeticProbe& arithmetic_probe(const KernelTable& table) noexcept;

// Internal: the probes as objects. Calling one needs its table's instruction set.
extern const ArithmeticProbe kRefProbe;
extern const ArithmeticProbe kAvx2Probe;
extern const ArithmeticProbe kAvx512Probe;
extern const ArithmeticProbe kNeonProbe;

}  // namespace cutaway::kernels
