// Monotonic time for durations, wall time for log lines.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace cutaway {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Microseconds since the Unix epoch.
inline int64_t wall_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// "HH:MM:SS.mmm" in local time.
std::string clock_text(int64_t wall_us);

// 26 characters, sortable by time (ULID, Crockford base 32).
std::string new_ulid();

}  // namespace cutaway
