#include <iterator>
#include <string>

#include "arch/architecture.h"
#include "trace/trace.h"

namespace cutaway::arch {

// One line an architecture; each is defined in the file of its name.
extern const Architecture kLlama;
extern const Architecture kMixtral;
extern const Architecture kQwen2;
extern const Architecture kQwen2Moe;
extern const Architecture kQwen3;
extern const Architecture kQwen3Moe;
extern const Architecture kGemma2;
extern const Architecture kGemma3;
extern const Architecture kOlmo2;
extern const Architecture kSmolLm3;
extern const Architecture kGranite;
extern const Architecture kPhi3;
extern const Architecture kGpt2;

std::span<const Architecture> architectures() {
  CUTAWAY_SPAN(span, "arch::architectures");
  static const Architecture kAll[] = {kLlama,    kMixtral, kQwen2,  kQwen2Moe, kQwen3,
                                      kQwen3Moe, kGemma2,  kGemma3, kOlmo2,    kSmolLm3,
                                      kGranite,  kPhi3,    kGpt2};
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

Result<const Architecture*> find_architecture(const Metadata& metadata) {
  CUTAWAY_SPAN(span, "arch::find_architecture", "keys", metadata.entries().size());
  CUTAWAY_ASSIGN(const std::string name, metadata.string("general.architecture"));
  for (const Architecture& architecture : architectures()) {
    if (architecture.claims != nullptr && architecture.claims(metadata)) {
      CUTAWAY_OUT(span, "found", architecture.name);
      return &architecture;
    }
  }
  return find_architecture(name);
}

}  // namespace cutaway::arch
