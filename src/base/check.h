// CUTAWAY_CHECK: programmer mistakes only. Never reachable from a file, a request or a user.
#pragma once

namespace cutaway::internal {
[[noreturn]] void check_failed(const char* condition, const char* file, int line) noexcept;
}

#define CUTAWAY_CHECK(condition)                                         \
  do {                                                                   \
    if (!(condition)) [[unlikely]] {                                     \
      ::cutaway::internal::check_failed(#condition, __FILE__, __LINE__); \
    }                                                                    \
  } while (false)
