#include "text/tokenizer/special_matcher.h"

#include <fmt/format.h>

#include <algorithm>

#include "trace/trace.h"

namespace cutaway::text {
namespace {

using Nodes = std::vector<SpecialMatcher::Node>;

// The child of a node for a byte; 0: none.
uint32_t step(const Nodes& nodes, uint32_t node, uint8_t byte) {
  uint32_t child = nodes[node].child;
  while (child != 0 && nodes[child].byte != byte) child = nodes[child].sibling;
  return child;
}

// The longest allowed spelling at pos, or one with id −1. `node` is that of the byte at pos;
// control tokens end by trusted_end.
SpecialMatch longest_at(const Nodes& nodes, uint32_t node, std::string_view text, size_t pos,
                        size_t trusted_end) {
  SpecialMatch best{pos, pos, -1};
  for (size_t end = pos + 1; node != 0; ++end) {
    if (nodes[node].user >= 0) best = {pos, end, nodes[node].user};
    if (nodes[node].control >= 0 && end <= trusted_end) best = {pos, end, nodes[node].control};
    if (end == text.size()) break;
    node = step(nodes, node, static_cast<uint8_t>(text[end]));
  }
  return best;
}

}  // namespace

Result<SpecialMatcher> SpecialMatcher::create(const Vocabulary& vocabulary) {
  CUTAWAY_SPAN(span, "text::SpecialMatcher::create", "specials", vocabulary.specials().size());
  SpecialMatcher m;
  const auto add = [&](std::string_view spelling, int32_t id) {
    const bool user = vocabulary.type(id) == TokenType::kUserDefined;
    uint32_t node = 0;
    for (const char c : spelling) {
      const uint8_t byte = static_cast<uint8_t>(c);
      uint32_t next = node == 0 ? m.roots_[byte] : step(m.nodes_, node, byte);
      if (next == 0) {
        next = static_cast<uint32_t>(m.nodes_.size());
        Node fresh;
        fresh.byte = byte;
        if (node == 0) {
          m.roots_[byte] = next;
        } else {
          fresh.sibling = m.nodes_[node].child;
          m.nodes_[node].child = next;
        }
        m.nodes_.push_back(fresh);
      }
      node = next;
    }
    m.any_first_[static_cast<uint8_t>(spelling[0])] = true;
    if (user) m.user_first_[static_cast<uint8_t>(spelling[0])] = true;
    (user ? m.nodes_[node].user : m.nodes_[node].control) = id;
  };
  for (const int32_t id : vocabulary.specials()) {
    const std::string_view spelling = vocabulary.bytes(id);
    if (spelling.empty()) continue;
    if (spelling.size() > kMaxSpelling) {
      return Error{
          ErrorCode::kUnsupported,
          fmt::format("tokenizer.ggml.tokens[{}] is an added token of {} bytes; at most {} "
                      "are supported",
                      id, spelling.size(), kMaxSpelling),
          "tokenizer.ggml.tokens"};
    }
    add(spelling, id);
    if (vocabulary.spelling() == Spelling::kSentencePiece &&
        vocabulary.type(id) == TokenType::kUserDefined) {
      add(with_space_marks(spelling), id);  // a space and its sign are the same
    }
  }
  return m;
}

std::vector<SpecialMatch> SpecialMatcher::find(std::string_view text,
                                               const std::vector<Run>& runs) const {
  CUTAWAY_SPAN(span, "text::SpecialMatcher::find", "text", text, "runs", runs.size());
  std::vector<SpecialMatch> matches;
  size_t pos = 0;
  for (const Run& run : runs) {
    const std::array<bool, 256>& begins = run.trusted ? any_first_ : user_first_;
    while (pos < run.end) {
      const uint8_t byte = static_cast<uint8_t>(text[pos]);
      if (!begins[byte]) {
        ++pos;
        continue;
      }
      const SpecialMatch match =
          longest_at(nodes_, roots_[byte], text, pos, run.trusted ? run.end : 0);
      if (match.id < 0) {
        ++pos;
        continue;
      }
      matches.push_back(match);
      pos = match.end;
    }
  }
  CUTAWAY_OUT(span, "matches", matches.size());
  return matches;
}

}  // namespace cutaway::text
