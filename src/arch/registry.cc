#include <iterator>
#include <string>

#include "arch/architecture.h"
#include "trace/trace.h"

namespace cutaway::arch {

// One line an architecture; each is defined in the file of its name.
extern const Architecture kLlama;
extern const Architecture kQwen2;
extern const Architecture kQwen3;

std::span<const Architecture> architectures() {
  CUTAWAY_SPAN(span, "arch::architectures");
  static const Architecture kAll[] = {kLlama, kQwen2, kQwen3};
  CUTAWAY_OUT(span, "n", std::size(kAll));
  return kAll;
}

Result<const Architecture*> find_architecture(std::string_view name) {
  CUTAWAY_SPAN(span, "arch::find_architecture", "name", name);
  std::string known;
  for (const Architecture& architecture : architectures()) {
    if (name == architecture.name) {
      CUTAWAY_OUT(span, "found", architecture.name);
      return &architecture;
    }
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return Error{ErrorCode::kUnsupported,
               "general.architecture is \"" + std::string(name) + "\"; this version runs: " + known,
               "general.architecture"};
}

}  // namespace cutaway::arch
