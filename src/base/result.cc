#include "base/result.h"

#include <cstdio>
#include <cstdlib>

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

}  // namespace cutaway
