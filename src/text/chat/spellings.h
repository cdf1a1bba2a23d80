// Where a text spells a control token, or could come to spell one together with its neighbours.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cutaway::text {

// Byte ranges, ascending.
struct TextRange {
  size_t begin, end;
};

class ControlSpellings {
 public:
  explicit ControlSpellings(std::vector<std::string> spellings);

  // What of a content string must not reach the tokenizer as trusted text: complete spellings; an
  // end that begins one; a beginning that ends one; all of it, when it lies inside one. Breaking
  // one character of each range breaks every control token that the string can take part in.
  std::vector<TextRange> dangers(std::string_view text) const;

  // Complete spellings only, leftmost and longest.
  std::vector<TextRange> complete(std::string_view text) const;

  const std::vector<std::string>& all() const { return sorted_; }

 private:
  std::vector<std::string> sorted_;    // ascending, without empty ones
  std::vector<std::string> reversed_;  // each written backwards, ascending
  size_t longest_ = 0;
};

// The string literals inside a template's tags that are more than white space: what its logic may
// look for in a content string. Sorted, each once.
std::vector<std::string> template_literals(std::string_view source);

}  // namespace cutaway::text
