// How much memory the process can still take.
#pragma once

#include <cstdint>
#include <string>

namespace cutaway {

struct MemoryLimit {
  uint64_t available_bytes = 0;  // 0 with an empty source: not known
  std::string source;            // "MemAvailable", or "the cgroup's limit"

  bool known() const { return !source.empty(); }
};

// The smaller of what the system can give without swapping (MemAvailable of /proc/meminfo) and of
// what the cgroup of this process and its ancestors leave (v2: memory.max − memory.current, v1:
// memory.limit_in_bytes − memory.usage_in_bytes, both with the file pages that the kernel would
// drop added). Files are read under `root` ("" is the real system).
MemoryLimit available_memory(const std::string& root);

}  // namespace cutaway
