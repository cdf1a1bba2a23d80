// Tokens that are forced or banned at steps of an answer, whatever the distribution says.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace cutaway::sampling {

struct StepRange {
  int64_t begin = 0, end = INT64_MAX;  // [begin, end), steps of the answer from 0
  bool holds(int64_t step) const { return step >= begin && step < end; }
};

struct TokenRules {
  struct Ban {
    std::vector<int32_t> ids;
    std::vector<StepRange> steps;
    bool holds(int64_t step) const {
      for (const StepRange& range : steps) {
        if (range.holds(step)) return true;
      }
      return false;
    }
  };
  std::map<int64_t, int32_t> forced;  // step → id
  std::vector<Ban> bans;

  bool empty() const { return forced.empty() && bans.empty(); }
  std::optional<int32_t> forced_at(int64_t step) const {
    const auto it = forced.find(step);
    return it == forced.end() ? std::nullopt : std::optional(it->second);
  }
};

}  // namespace cutaway::sampling
