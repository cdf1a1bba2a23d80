// Reads a .safetensors file that the tests trust (goldens, captures).
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"

namespace cutaway::testing {

struct SafeTensor {
  std::vector<int64_t> shape;
  std::string dtype;
  std::string bytes;

  const float* floats() const { return reinterpret_cast<const float*>(bytes.data()); }
  const int32_t* ints() const { return reinterpret_cast<const int32_t*>(bytes.data()); }
  size_t elements() const { return bytes.size() / 4; }
};

inline std::map<std::string, SafeTensor> read_safetensors(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream buffer;
  buffer << in.rdbuf();
  const std::string file = buffer.str();
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const Json header = Json::parse(file.substr(8, length));
  std::map<std::string, SafeTensor> out;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = value["data_offsets"][0].get<size_t>();
    const auto end = value["data_offsets"][1].get<size_t>();
    out[name] = {value["shape"].get<std::vector<int64_t>>(), value["dtype"].get<std::string>(),
                 file.substr(8 + length + begin, end - begin)};
  }
  return out;
}

}  // namespace cutaway::testing
