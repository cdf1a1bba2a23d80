#include "text/tokenizer/spaces.h"

#include "trace/trace.h"

namespace cutaway::text {
namespace {

constexpr std::string_view kMark = "\u2581";

// Bytes of the space at pos (' ' or its mark); 0: something else.
size_t space_at(std::string_view text, size_t pos) {
  if (text[pos] == ' ') return 1;
  return text.substr(pos).starts_with(kMark) ? kMark.size() : 0;
}

}  // namespace

Result<SpaceRules> SpaceRules::read(const Metadata& metadata, SpaceRules defaults) {
  CUTAWAY_SPAN(span, "text::SpaceRules::read");
  SpaceRules rules;
  CUTAWAY_ASSIGN(rules.add_prefix,
                 metadata.boolean_or("tokenizer.ggml.add_space_prefix", defaults.add_prefix));
  CUTAWAY_ASSIGN(rules.remove_extra, metadata.boolean_or("tokenizer.ggml.remove_extra_whitespaces",
                                                         defaults.remove_extra));
  CUTAWAY_OUT(span, "add_prefix", rules.add_prefix, "remove_extra", rules.remove_extra);
  return rules;
}

SpacedText::SpacedText(std::string_view input, SpaceRules rules) : AlignedText(input) {
  CUTAWAY_SPAN(span, "text::SpacedText::SpacedText", "input", input);
  size_t pos = 0;
  if (rules.remove_extra) {  // those at the beginning
    while (pos < input.size() && space_at(input, pos) > 0) pos += space_at(input, pos);
  }
  const bool prefix = rules.add_prefix && pos < input.size();
  if (prefix || pos > 0) replace(0, pos, prefix ? " " : "");
  while (pos < input.size()) {
    const size_t next =
        rules.remove_extra ? input.find_first_of(" \xE2", pos) : input.find(kMark, pos);
    if (next == std::string_view::npos) break;
    size_t end = next + space_at(input, next);
    if (end == next) {  // another character that begins like the mark
      pos = next + 1;
      continue;
    }
    if (rules.remove_extra) {
      while (end < input.size() && space_at(input, end) > 0) end += space_at(input, end);
    }
    const std::string_view by = rules.remove_extra && end == input.size() ? "" : " ";
    if (input.substr(next, end - next) != by) replace(next, end, by);
    pos = end;
  }
  finish();
  CUTAWAY_OUT(span, "text", text(), "changed", changed());
}

}  // namespace cutaway::text
