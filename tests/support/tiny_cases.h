// What the tests of every architecture run on: each of its tiny configurations with each of some
// types of weights, and a prompt.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "arch/architecture.h"
#include "tests/support/tiny_model.h"

namespace cutaway::testing {

struct TinyCase {
  const arch::Architecture* architecture = nullptr;
  Metadata config;
  DType type = DType::kF32;
  std::string name;  // "llama_0_F32"
};

inline std::vector<TinyCase> tiny_cases(std::initializer_list<DType> types) {
  std::vector<TinyCase> out;
  for (const arch::Architecture& architecture : arch::architectures()) {
    int index = 0;
    for (const Metadata& config : architecture.tiny_configs()) {
      for (const DType type : types) {
        out.push_back({&architecture, config, type,
                       std::string(architecture.name) + "_" + std::to_string(index) + "_" +
                           dtype_name(type)});
      }
      ++index;
    }
  }
  return out;
}

// For INSTANTIATE_TEST_SUITE_P.
struct CaseName {
  template <typename Info>
  std::string operator()(const Info& info) const {
    return info.param.name;
  }
};

// Ids without a pattern that attention could lean on, all in the tiny vocabularies.
inline std::vector<int32_t> tiny_prompt(int64_t n) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(static_cast<int32_t>((i * 37 + 11) % 256));
  return out;
}

}  // namespace cutaway::testing
