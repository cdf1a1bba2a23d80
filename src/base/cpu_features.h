// What the processor can do and the operating system lets us use.
#pragma once

#include <string>
#include <vector>

namespace cutaway {

struct CpuFeatures {
  std::string brand;  // e.g. "AMD EPYC 9555"
  bool avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false;
  bool avx512_vnni = false, avx512_bf16 = false, avx_vnni = false;
  bool neon = false, dotprod = false, i8mm = false;
  size_t l1d_bytes = 0, l2_bytes = 0, l3_bytes = 0;
  // Names of the flags above that are set, in that order.
  std::vector<std::string> names() const;
};

// Detected once, on first use. AVX state that the operating system does not save counts as absent.
const CpuFeatures& cpu_features();

}  // namespace cutaway
