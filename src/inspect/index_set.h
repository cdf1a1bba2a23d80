// Which positions, steps, heads or features: single indices and half-open ranges, as a
// specification has them: 3, -1, "2:6", ":4", "-3:", or a list of such.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace cutaway::inspect {

// [begin, end), both resolved.
struct Range {
  int64_t begin = 0, end = INT64_MAX;
  bool holds(int64_t i) const { return i >= begin && i < end; }
  friend bool operator==(const Range&, const Range&) = default;
};

inline bool holds(const std::vector<Range>& ranges, int64_t i) {
  for (const Range& range : ranges) {
    if (range.holds(i)) return true;
  }
  return false;
}

class IndexSet {
 public:
  // Null: everything. `negative`: indices below 0 count from an end that is known later; `word`:
  // a name that may stand among them (for steps, "prompt"), or null. Error kInvalidArgument: FIELD,
  // the part and what it may be.
  static Result<IndexSet> parse(const Json& json, const std::string& field, bool negative,
                                const char* word = nullptr);

  bool all() const { return parts_.empty() && !word_; }
  bool has_word() const { return word_; }  // the word is one of the parts
  // The ranges with negative ends counted from `length`, in the order in which they were given. An
  // end that is open stays INT64_MAX.
  std::vector<Range> resolve(int64_t length) const;
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
  std::vector<Part> parts_;
  bool word_ = false;
};

}  // namespace cutaway::inspect
