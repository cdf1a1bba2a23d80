#include "kernels/probe.h"

#include <cstring>

namespace cutaway::kernels {
namespace {

// CMakeLists.txt defines CUTAWAY_PROBE_<ISA> for each probe that this target has.
constexpr const ArithmeticProbe* kProbes[] = {
#ifdef CUTAWAY_PROBE_X86
    &kAvx512Probe, &kAvx2Probe,
#endif
#ifdef CUTAWAY_PROBE_ARM
    &kNeonProbe,
#endif
    &kRefProbe};

}  // namespace

const ArithmeticProbe& arithmetic_probe(const KernelTable& table) noexcept {
  for (const ArithmeticProbe* probe : kProbes) {
    if (std::strcmp(probe->table, table.name) == 0) return *probe;
  }
  return kRefProbe;
}

}  // namespace cutaway::kernels
