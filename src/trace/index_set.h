// Which layers, heads, positions, steps or features: one grammar for flags and for JSON.
//
//   3      an index; below 0, where that is allowed: counted from the end
//   2-5    2 to 5, the 5 as well
//   2:6    2 to 5, the 6 excluded; 3: from 3 on; :4 up to 3; -4: the last four
//   0,3-5  several of these
//
// In JSON: a number, a text of this form, or a list of such.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace cutaway::trace {

// [begin, end), both resolved.
struct IndexRange {
  int64_t begin = 0, end = INT64_MAX;
  bool holds(int64_t i) const { return i >= begin && i < end; }
  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

inline bool holds(const std::vector<IndexRange>& ranges, int64_t i) {
  for (const IndexRange& range : ranges) {
    if (range.holds(i)) return true;
  }
  return false;
}

// What a field takes.
struct IndexRules {
  const char* counted_from = nullptr;  // "the prompt's end": negative indices count from there;
                                       // null: none is below 0
  const char* word = nullptr;          // a name that may stand among them (for steps, "prompt")
  int64_t length = -1;                 // how many there are, where that is known: for messages
  bool one_range = false;              // several are not taken: for messages
};

class IndexSet {
 public:
  // Null, or an empty text: everything. Error kInvalidArgument: FIELD, the part, and what it takes.
  static Result<IndexSet> parse(const Json& json, const std::string& field,
                                const IndexRules& rules);
  static Result<IndexSet> parse_text(std::string_view text, const std::string& field,
                                     const IndexRules& rules);

  bool all() const { return parts_.empty() && words_ == 0; }
  bool has_word() const { return words_ > 0; }  // the word is one of the parts
  bool word_twice() const { return words_ > 1; }
  bool has_indices() const { return !parts_.empty(); }
  // The one range that it is, its ends unresolved (an open end: INT64_MAX); none where it is
  // several.
  std::optional<IndexRange> one_range() const;
  // The ranges with negative ends counted from `length`, in the order in which they were given. An
  // end that is open stays INT64_MAX.
  std::vector<IndexRange> resolve(int64_t length) const;
  // The first of the single indices that is below 0 even when counted from `length`.
  std::optional<int64_t> before_first(int64_t length) const;
  // Every index, in the order in which they were given. Error kInvalidArgument when one is not in
  // [0, length), or is there twice: FIELD, the index and the bounds. `what` names what there is:
  // "heads".
  Result<std::vector<int64_t>> indices(int64_t length, const std::string& field,
                                       const std::string& what) const;

 private:
  struct Part {
    std::optional<int64_t> begin, end;
    bool one = false;  // begin alone
  };
  static std::optional<Part> read(std::string_view text);
  static bool sound(const Part& part, const IndexRules& rules);
  static bool holds_nothing(const Part& part);
  Status add(std::string_view text, const std::string& field, const IndexRules& rules);

  std::vector<Part> parts_;
  int words_ = 0;
};

}  // namespace cutaway::trace
