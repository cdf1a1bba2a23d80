#include "text/chat/spellings.h"

#include <algorithm>

#include "base/utf8.h"
#include "trace/trace.h"

namespace cutaway::text {
namespace {

// Is there a string in `sorted` that begins with `prefix` and is longer?
bool extends(const std::vector<std::string>& sorted, std::string_view prefix) {
  const auto it = std::upper_bound(sorted.begin(), sorted.end(), prefix);
  return it != sorted.end() && std::string_view(*it).starts_with(prefix);
}

// Length of the longest end of `text` that begins one of `sorted` (without being all of it).
size_t beginning_at_end(const std::vector<std::string>& sorted, size_t longest,
                        std::string_view text) {
  for (size_t n = std::min(text.size(), longest); n > 0; --n) {
    if (extends(sorted, text.substr(text.size() - n))) return n;
  }
  return 0;
}

std::string_view strip(std::string_view s) {
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  const size_t begin = s.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return s.substr(begin, s.find_last_not_of(kSpace) + 1 - begin);
}

// The character that a backslash and `c` stand for; 0: both stay.
char unescape(char c) {
  switch (c) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case '\\':
    case '\'':
    case '"':
      return c;
    default:
      return 0;
  }
}

void merge_overlaps(std::vector<TextRange>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const TextRange& a, const TextRange& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  size_t kept = 0;
  for (const TextRange& range : ranges) {
    if (kept > 0 && range.begin < ranges[kept - 1].end) {
      ranges[kept - 1].end = std::max(ranges[kept - 1].end, range.end);
    } else {
      ranges[kept++] = range;
    }
  }
  ranges.resize(kept);
}

// Length of the longest spelling at text[pos], 0: none.
size_t longest_at(const std::vector<std::string>& sorted, std::string_view text, size_t pos) {
  size_t found = 0;
  auto begin = sorted.begin(), end = sorted.end();
  // Narrows the sorted list one character at a time.
  for (size_t n = 0; begin != end && pos + n < text.size(); ++n) {
    const auto at = [n](const std::string& s) {
      return n < s.size() ? static_cast<int>(static_cast<uint8_t>(s[n])) : -1;
    };
    const int byte = static_cast<uint8_t>(text[pos + n]);
    begin = std::partition_point(begin, end, [&](const auto& s) { return at(s) < byte; });
    end = std::partition_point(begin, end, [&](const auto& s) { return at(s) <= byte; });
    if (begin != end && begin->size() == n + 1) found = n + 1;
  }
  return found;
}

}  // namespace

ControlSpellings::ControlSpellings(std::vector<std::string> spellings)
    : sorted_(std::move(spellings)) {
  CUTAWAY_SPAN(span, "text::ControlSpellings::ControlSpellings", "n", sorted_.size());
  std::erase_if(sorted_, [](const std::string& s) { return s.empty(); });
  std::sort(sorted_.begin(), sorted_.end());
  sorted_.erase(std::unique(sorted_.begin(), sorted_.end()), sorted_.end());
  for (const std::string& s : sorted_) {
    reversed_.emplace_back(s.rbegin(), s.rend());
    longest_ = std::max(longest_, s.size());
  }
  std::sort(reversed_.begin(), reversed_.end());
}

std::vector<TextRange> ControlSpellings::complete(std::string_view text) const {
  CUTAWAY_SPAN(span, "text::ControlSpellings::complete", "text", text);
  std::vector<TextRange> ranges;
  for (size_t pos = 0; pos < text.size();) {
    const size_t n = longest_at(sorted_, text, pos);
    if (n > 0) ranges.push_back({pos, pos + n});
    pos += std::max<size_t>(n, 1);
  }
  CUTAWAY_OUT(span, "ranges", ranges.size());
  return ranges;
}

std::vector<TextRange> ControlSpellings::dangers(std::string_view text) const {
  CUTAWAY_SPAN(span, "text::ControlSpellings::dangers", "text", text);
  std::vector<TextRange> ranges = complete(text);
  // A template may strip white space around a content before it joins it to other text.
  const std::string_view core = strip(text);
  if (core.empty()) return ranges;
  const size_t offset = static_cast<size_t>(core.data() - text.data());
  if (core.size() < longest_) {
    for (const std::string& s : sorted_) {
      if (s.size() > core.size() && s.find(core) != std::string::npos) {
        return {{offset, offset + core.size()}};
      }
    }
  }
  if (const size_t n = beginning_at_end(sorted_, longest_, core)) {
    ranges.push_back({offset + core.size() - n, offset + core.size()});
  }
  const std::string_view front = core.substr(0, longest_);
  const std::string backwards(front.rbegin(), front.rend());
  if (const size_t n = beginning_at_end(reversed_, longest_, backwards)) {
    ranges.insert(ranges.begin(), {offset, offset + n});
  }
  merge_overlaps(ranges);
  CUTAWAY_OUT(span, "ranges", ranges.size());
  return ranges;
}

std::vector<std::string> template_literals(std::string_view source) {
  CUTAWAY_SPAN(span, "text::template_literals", "source", source);
  std::vector<std::string> literals;
  for (size_t pos = 0; pos + 1 < source.size();) {
    const std::string_view open = source.substr(pos, 2);
    if (open == "{#") {
      const size_t end = source.find("#}", pos);
      if (end == std::string_view::npos) break;
      pos = end + 2;
      continue;
    }
    if (open != "{{" && open != "{%") {
      ++pos;
      continue;
    }
    const std::string_view close = open == "{{" ? "}}" : "%}";
    pos += 2;
    while (pos < source.size() && source.substr(pos, 2) != close) {
      const char quote = source[pos++];
      if (quote != '\'' && quote != '"') continue;
      std::string literal;
      while (pos < source.size() && source[pos] != quote) {
        if (source[pos] == '\\' && pos + 1 < source.size()) {
          const char c = unescape(source[pos + 1]);
          if (c == 0)
            literal += source.substr(pos, 2);
          else
            literal += c;
          pos += 2;
        } else {
          literal += source[pos++];
        }
      }
      ++pos;
      if (!strip(literal).empty()) literals.push_back(std::move(literal));
    }
  }
  std::sort(literals.begin(), literals.end());
  literals.erase(std::unique(literals.begin(), literals.end()), literals.end());
  CUTAWAY_OUT(span, "n", literals.size());
  return literals;
}

}  // namespace cutaway::text
