// The file names of a split GGUF model: NAME-00001-of-00003.gguf.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cutaway::formats {

struct ShardName {
  std::string prefix;  // what is before "-00001-of-00003.gguf", folders included
  int64_t no = 0;      // 1 … count, as the name has it
  int64_t count = 0;
};

// Nothing when the name is not one of a shard (five digits each, 1 ≤ no ≤ count).
std::optional<ShardName> parse_shard_name(std::string_view path);
// The path of shard `no` (1 … count).
std::string shard_path(const std::string& prefix, int64_t no, int64_t count);

}  // namespace cutaway::formats
