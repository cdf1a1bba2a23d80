#include "base/utf8.h"

namespace cutaway {
namespace {

struct Lead {
  int length;         // 0: begins no character
  uint8_t low, high;  // allowed range of the second byte (Unicode 15, table 3-7)
};

Lead classify(uint8_t byte) noexcept {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Bytes of s from pos that are a valid beginning of a character, at most its whole length.
size_t valid_prefix(std::string_view s, size_t pos, const Lead& lead) noexcept {
  size_t n = 1;
  while (n < static_cast<size_t>(lead.length) && pos + n < s.size()) {
    const uint8_t byte = static_cast<uint8_t>(s[pos + n]);
    const uint8_t low = n == 1 ? lead.low : 0x80;
    const uint8_t high = n == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) break;
    ++n;
  }
  return n;
}

}  // namespace

int32_t utf8_decode_any(std::string_view s, size_t pos, size_t& length) noexcept {
  length = 1;
  const uint8_t first = static_cast<uint8_t>(s[pos]);
  if (first < 0x80) return first;
  const Lead lead = classify(first);
  if (lead.length == 0 || valid_prefix(s, pos, lead) != static_cast<size_t>(lead.length)) return -1;
  length = static_cast<size_t>(lead.length);
  int32_t value = first & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) {
    value = value << 6 | (static_cast<uint8_t>(s[pos + i]) & 0x3F);
  }
  return value;
}

void utf8_append(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

bool utf8_valid(std::string_view s) noexcept {
  for (size_t i = 0, n = 0; i < s.size(); i += n) {
    if (utf8_decode(s, i, n) < 0) return false;
  }
  return true;
}

size_t utf8_incomplete_tail(std::string_view s) noexcept {
  for (size_t back = 1; back <= 3 && back <= s.size(); ++back) {
    const size_t pos = s.size() - back;
    const uint8_t byte = static_cast<uint8_t>(s[pos]);
    if ((byte & 0xC0) == 0x80) continue;
    const Lead lead = classify(byte);
    return static_cast<size_t>(lead.length) > back && valid_prefix(s, pos, lead) == back ? back : 0;
  }
  return 0;
}

std::string utf8_replace_invalid(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t i = 0; i < s.size();) {
    size_t n = 0;
    if (utf8_decode(s, i, n) < 0) {
      const Lead lead = classify(static_cast<uint8_t>(s[i]));
      n = lead.length == 0 ? 1 : valid_prefix(s, i, lead);
      out += "\xEF\xBF\xBD";
    } else {
      out.append(s, i, n);
    }
    i += n;
  }
  return out;
}

}  // namespace cutaway
