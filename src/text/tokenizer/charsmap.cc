#include "text/tokenizer/charsmap.h"

#include <fmt/format.h>

#include "base/utf8.h"
#include "trace/trace.h"

namespace cutaway::text {
namespace {

constexpr const char* kKey = "tokenizer.ggml.precompiled_charsmap";

Error bad_map(const std::string& why) {
  return {ErrorCode::kInvalidFile, std::string(kKey) + ": " + why, kKey};
}

}  // namespace

Result<CharacterMap> CharacterMap::read(const Metadata& metadata) {
  CUTAWAY_SPAN(span, "text::CharacterMap::read");
  CharacterMap map;
  if (!metadata.has(kKey)) return map;
  CUTAWAY_ASSIGN(const std::vector<int64_t> values, metadata.integers(kKey));
  if (values.empty()) return map;
  std::string bytes;
  bytes.reserve(values.size());
  for (const int64_t value : values) bytes += static_cast<char>(value & 0xFF);
  const auto word = [&](size_t at) {
    uint32_t unit = 0;
    for (size_t i = 4; i-- > 0;) unit = unit << 8 | static_cast<uint8_t>(bytes[at + i]);
    return unit;
  };
  if (bytes.size() < 4)
    return bad_map(fmt::format("{} bytes; the first four are a length", bytes.size()));
  const size_t size = word(0);
  if (size % 4 != 0 || size < 4 || size + 4 >= bytes.size()) {
    return bad_map(
        fmt::format("the length in its first four bytes is {} of {} bytes; a multiple of "
                    "4 from 4 on, with replacements after it, is needed",
                    size, bytes.size()));
  }
  for (size_t at = 4; at < size + 4; at += 4) map.units_.push_back(word(at));
  map.replacements_ = bytes.substr(size + 4);
  if (map.replacements_.back() != '\0') return bad_map("its last replacement has no end");
  for (const uint32_t unit : map.units_) {
    const uint32_t offset = unit & 0x7FFFFFFFu;
    if (unit >> 31 && offset >= map.replacements_.size()) {
      return bad_map(
          fmt::format("a replacement at {}, of {} bytes", offset, map.replacements_.size()));
    }
  }
  CUTAWAY_OUT(span, "units", map.units_.size(), "replacements", map.replacements_.size());
  return map;
}

MappedText::MappedText(std::string_view input, const CharacterMap& map) : AlignedText(input) {
  CUTAWAY_SPAN(span, "text::MappedText::MappedText", "input", input);
  size_t length = 0;
  std::string_view by;
  for (size_t pos = 0; pos < input.size(); pos += length) {
    if (map.find(input, pos, length, by)) {
      if (by != input.substr(pos, length)) replace(pos, pos + length, by);
    } else if (utf8_decode(input, pos, length) < 0) {
      replace(pos, pos + 1, "\uFFFD");
    }
  }
  finish();
  CUTAWAY_OUT(span, "text", text(), "changed", changed());
}

}  // namespace cutaway::text
