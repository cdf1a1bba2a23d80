#include "formats/shard_name.h"

#include <fmt/format.h>

#include "trace/trace.h"

namespace cutaway::formats {
namespace {

constexpr std::string_view kOf = "-of-", kExtension = ".gguf";
constexpr size_t kDigits = 5;
constexpr size_t kTail = 1 + kDigits + kOf.size() + kDigits + kExtension.size();

// −1 when a character is no digit.
int64_t digits(std::string_view text) {
  int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return -1;
    value = value * 10 + (c - '0');
  }
  return value;
}

}  // namespace

std::optional<ShardName> parse_shard_name(std::string_view path) {
  CUTAWAY_SPAN(span, "formats::parse_shard_name", "path", path);
  if (path.size() <= kTail) return {};
  const std::string_view tail = path.substr(path.size() - kTail);
  if (tail[0] != '-' || tail.substr(1 + kDigits, kOf.size()) != kOf ||
      !tail.ends_with(kExtension)) {
    return {};
  }
  ShardName out{std::string(path.substr(0, path.size() - kTail)), digits(tail.substr(1, kDigits)),
                digits(tail.substr(1 + kDigits + kOf.size(), kDigits))};
  if (out.no < 1 || out.no > out.count || out.prefix.ends_with('/')) return {};
  CUTAWAY_OUT(span, "no", out.no, "count", out.count);
  return out;
}

std::string shard_path(const std::string& prefix, int64_t no, int64_t count) {
  CUTAWAY_SPAN(span, "formats::shard_path", "prefix", prefix, "no", no, "count", count);
  std::string out = fmt::format("{}-{:05}-of-{:05}.gguf", prefix, no, count);
  CUTAWAY_OUT(span, "path", out);
  return out;
}

}  // namespace cutaway::formats
