// Tells a template's own text from what it was given: content strings are rendered with their
// characters exchanged for private-use ones, and exchanged back in the output (docs/adr/0004).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "text/chat/spellings.h"
#include "text/tokenizer/tokenizer.h"

namespace cutaway::text {

// A string of the input that a template may write out.
struct Leaf {
  std::string text;
  bool is_key = false;          // the key of a mapping, not a value
  bool from_assistant = false;  // the own words of a message whose role is "assistant"
};

// Walks the strings of a template's variables in a fixed order. Roles that chat formats know,
// the types of parts and of JSON Schema, and keys that are plain identifiers, are structure: no
// leaves.
// Error kInvalidArgument: nested deeper than kMaxDepth, or not UTF-8 (the message names the place).
Result<std::vector<Leaf>> collect_leaves(const Json& context);
inline constexpr int kMaxContextDepth = 100;

// The same variables with the leaves exchanged for `texts`, in the order of collect_leaves().
Json replace_leaves(const Json& context, const std::vector<std::string>& texts);

// One private-use character for each character that occurs in the leaves. White space, quotes,
// backslashes and control characters keep themselves: templates strip and escape them.
class PrivateAlphabet {
 public:
  // `avoid`: texts whose characters must not be used (the template's source).
  PrivateAlphabet(const std::vector<Leaf>& leaves, const std::vector<std::string_view>& avoid);

  // False when the texts themselves use so many private characters that some character has none:
  // what it spells could not be told from the template's own text, so that nothing may be rendered.
  bool complete() const { return complete_; }

  // Exchanges the characters of text that begin inside one of `ranges` (ascending).
  std::string hide(std::string_view text, const std::vector<TextRange>& ranges) const;
  std::string show(std::string_view text) const;

  // The text with every character back, cut where trust changes: what was private is literal.
  // White space and quotes between two literal pieces count as literal.
  std::vector<Segment> segments(std::string_view text) const;

 private:
  std::unordered_map<uint32_t, uint32_t> to_private_, from_private_;
  bool complete_ = true;
};

}  // namespace cutaway::text
