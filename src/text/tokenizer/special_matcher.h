// Finds the spellings of control and user-defined tokens in a text: the leftmost, there the
// longest.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer/vocabulary.h"

namespace cutaway::text {

struct SpecialMatch {
  size_t begin, end;
  int32_t id;
};

class SpecialMatcher {
 public:
  static constexpr size_t kMaxSpelling = 1024;  // bounds the work at each place of a text

  // Error kUnsupported for a spelling longer than kMaxSpelling. Empty spellings match nowhere.
  static Result<SpecialMatcher> create(const Vocabulary& vocabulary);

  // A run of text that is trusted or not, up to `end`.
  struct Run {
    size_t end;
    bool trusted;
  };
  // Matches in ascending order. Control tokens match only where one trusted run holds all of them.
  // Precondition: runs ascend and the last one ends at text.size().
  std::vector<SpecialMatch> find(std::string_view text, const std::vector<Run>& runs) const;

  // A node of the tree of spellings.
  struct Node {
    uint32_t child = 0, sibling = 0;  // 0: none (the root is nobody's child)
    int32_t control = -1, user = -1;  // the token whose spelling ends here
    uint8_t byte = 0;
  };

 private:
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<uint32_t, 256> roots_{};   // child of the root by byte
  std::array<bool, 256> any_first_{};   // bytes with which a spelling begins
  std::array<bool, 256> user_first_{};  // … of a user-defined token
};

}  // namespace cutaway::text
