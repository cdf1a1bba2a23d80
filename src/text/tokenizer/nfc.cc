#include "text/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "base/utf8.h"
#include "trace/trace.h"

namespace cutaway::text {
namespace {

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// NFC of a run of valid UTF-8. The marks are sorted here: utf8proc's own sort takes quadratic time.
std::string compose(std::string_view run) {
  std::vector<utf8proc_int32_t> points;
  std::vector<std::tuple<int, size_t, utf8proc_int32_t>> marks;  // class, place, character
  size_t length = 0;
  for (size_t pos = 0; pos < run.size(); pos += length) {
    utf8proc_int32_t parts[32];
    int last_class = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(utf8_decode(run, pos, length), parts, 32,
                                                       UTF8PROC_DECOMPOSE, &last_class);
    points.insert(points.end(), parts, parts + std::clamp<utf8proc_ssize_t>(n, 0, 32));
  }
  for (size_t i = 0; i < points.size();) {
    if (combining_class(points[i]) == 0) {
      ++i;
      continue;
    }
    marks.clear();
    size_t end = i;
    for (; end < points.size() && combining_class(points[end]) != 0; ++end) {
      marks.push_back({combining_class(points[end]), end - i, points[end]});
    }
    std::sort(marks.begin(), marks.end());
    for (const auto& [mark_class, place, c] : marks) points[i++] = c;
  }
  const auto flags = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t n =
      utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), flags);
  std::string out;
  for (utf8proc_ssize_t i = 0; i < n; ++i) utf8_append(out, static_cast<uint32_t>(points[i]));
  return out;
}

// Where a run of ASCII from pos ends, or up to seven bytes sooner.
size_t ascii_end(std::string_view text, size_t pos) {
  for (uint64_t bytes; pos + sizeof(bytes) <= text.size(); pos += sizeof(bytes)) {
    std::memcpy(&bytes, text.data() + pos, sizeof(bytes));
    if (bytes & 0x8080808080808080u) break;
  }
  return pos;
}

}  // namespace

NfcText::NfcText(const UnicodeTable& unicode, std::string_view input) : AlignedText(input) {
  CUTAWAY_SPAN(span, "text::NfcText::NfcText", "input", input);
  size_t previous = 0;  // where the character before `pos` begins
  bool valid = false;   // that character is one (and not a stray byte, or nothing)
  size_t length = 0;
  for (size_t pos = 0; pos < input.size();) {
    // Nothing below U+0300 is unsafe: its first byte is at least 0xCC.
    if (const size_t end = ascii_end(input, pos); end > pos) {
      valid = true;
      previous = end - 1;
      pos = end;
      continue;
    }
    if (static_cast<uint8_t>(input[pos]) < 0xCC) {
      valid = static_cast<uint8_t>(input[pos]) < 0x80 || utf8_decode(input, pos, length) >= 0;
      previous = pos;
      pos += static_cast<uint8_t>(input[pos]) < 0x80 ? 1 : length;
      continue;
    }
    if (!(unicode.at(input, pos, length) & kNfcUnsafe)) {
      valid = length > 1;
      previous = pos;
      pos += length;
      continue;
    }
    // What stands before the run is part of it, unless it is a mark that the table does not know
    // yet (utf8proc's Unicode is newer): `tokenizers` takes that for a character like any other.
    const bool joins = valid && combining_class(utf8_decode(input, previous, length)) == 0;
    const size_t begin = joins ? previous : pos;
    size_t end = pos;
    while (end < input.size() && (unicode.at(input, end, length) & kNfcUnsafe)) end += length;
    const std::string_view run = input.substr(begin, end - begin);
    if (std::string composed = compose(run); composed != run) {
      replace(begin, end, composed);
    }
    pos = end;
    valid = false;
  }
  if (changed() && !utf8_valid(input)) undo();
  finish();
  CUTAWAY_OUT(span, "text", text(), "changed", changed());
}

}  // namespace cutaway::text
