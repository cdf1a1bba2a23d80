#include "base/memory_limit.h"

#include <cstdio>

#include "api/impl.h"

namespace cutaway::api {
namespace {

std::string size_text(double bytes) {
  const char* units[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
  int unit = 0;
  for (bytes /= 1e3; bytes >= 999.95 && unit < 5; ++unit) bytes /= 1e3;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", bytes, units[unit]);
  return text;
}

// The memory that `pages` pages need and what there is, when that is known to be less; else empty.
std::string shortage(const kv::Geometry& geometry, int64_t pages) {
  if (pages <= 0) return {};
  const MemoryLimit limit = available_memory("");
  // In double: a product of what a file and a user say may be larger than any integer.
  const double needed = static_cast<double>(geometry.page_bytes()) * static_cast<double>(pages);
  if (!limit.known() || needed <= static_cast<double>(limit.available_bytes)) return {};
  return size_text(needed) + " of " + kernels::kv_type_name(geometry.type) + " KV cache, and " +
         size_text(static_cast<double>(limit.available_bytes)) + " of memory are available (" +
         limit.source + ")";
}

}  // namespace

Status check_memory(const kv::Geometry& geometry, int64_t pages, const std::string& what,
                    const std::string& field) {
  CUTAWAY_SPAN(span, "api::check_memory", "pages", pages, "what", what);
  const std::string sizes = shortage(geometry, pages);
  CUTAWAY_OUT(span, "fits", sizes.empty());
  if (sizes.empty()) return {};
  return Error{ErrorCode::kTooLarge, field + ": " + what + " need " + sizes, field};
}

std::string context_warning(const kv::Geometry& geometry, int64_t tokens) {
  CUTAWAY_SPAN(span, "api::context_warning", "tokens", tokens);
  const std::string sizes = shortage(geometry, kv::Geometry::pages_for(tokens));
  CUTAWAY_OUT(span, "fits", sizes.empty());
  if (sizes.empty()) return {};
  return "context: " + std::to_string(tokens) + " tokens would need " + sizes +
         "; an answer that goes on that far may end in an error";
}

}  // namespace cutaway::api
