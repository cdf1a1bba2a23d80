#include "base/result.h"

#include <cstdio>
#include <cstdlib>

#include "base/guard.h"

namespace cutaway {

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kInvalidFile:
      return "invalid_file";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kTooLarge:
      return "too_large";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kNetwork:
      return "network";
  }
  return "unknown";
}

namespace internal {
void check_failed(const char* condition, const char* file, int line) noexcept {
  std::fprintf(stderr, "cutaway: internal error: %s failed at %s:%d\n", condition, file, line);
  std::abort();
}
}  // namespace internal

Error out_of_memory(const char* what) {
  return {ErrorCode::kTooLarge, std::string("there is not enough memory for ") + what, "memory"};
}

Error no_thread(const char* what, const std::system_error& error) {
  return {ErrorCode::kIo, std::string("cannot start a thread for ") + what + ": " + error.what(),
          "threads"};
}

}  // namespace cutaway
