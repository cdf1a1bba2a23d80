#include "base/memory_limit.h"

#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/cgroup.h"

namespace cutaway {
namespace {

// The number that `text` begins with; nothing for "max", or where no number is.
std::optional<uint64_t> number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  return std::strtoull(std::string(text.substr(0, 20)).c_str(), nullptr, 10);
}

// The number behind a key at the beginning of a line: "inactive_file 4096", "MemAvailable:  12 kB".
std::optional<uint64_t> field(const std::string& text, std::string_view key) {
  for (size_t begin = 0; begin < text.size();) {
    if (std::string_view(text).substr(begin).starts_with(key)) {
      return number(std::string_view(text).substr(begin + key.size()));
    }
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    begin = end + 1;
  }
  return std::nullopt;
}

std::optional<uint64_t> left_in(const CgroupFolder& folder) {
  const auto read = [&](const char* name) {
    return number(read_small_file(folder.path + "/" + name));
  };
  const auto limit = read(folder.v2 ? "memory.max" : "memory.limit_in_bytes");
  const auto used = read(folder.v2 ? "memory.current" : "memory.usage_in_bytes");
  if (!limit || !used) return std::nullopt;
  // A v1 group without a limit says so with a huge number, which MemAvailable undercuts.
  const std::string stat = read_small_file(folder.path + "/memory.stat");
  const uint64_t dropped =
      field(stat, folder.v2 ? "inactive_file " : "total_inactive_file ").value_or(0);
  const uint64_t kept = *used > dropped ? *used - dropped : 0;
  return *limit > kept ? *limit - kept : 0;
}

}  // namespace

MemoryLimit available_memory(const std::string& root) {
  MemoryLimit out;
  if (const auto kib = field(read_small_file(root + "/proc/meminfo"), "MemAvailable:")) {
    out = {*kib * 1024, "MemAvailable"};
  }
  for (const CgroupFolder& folder : cgroup_folders(root, "memory")) {
    const auto left = left_in(folder);
    if (left && (!out.known() || *left < out.available_bytes)) {
      out = {*left, "the cgroup's limit"};
    }
  }
  return out;
}

}  // namespace cutaway
