// Guesses what comes next from what the text has said before: where its last tokens stood already,
// what followed them there.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace cutaway::inference {

class NgramDraft {
 public:
  void add(std::span<const int32_t> tokens);

  // Up to `most` tokens that may follow; none where the last two stood nowhere before. The longest
  // match of up to four tokens counts, of equal ones the latest.
  std::vector<int32_t> guess(int64_t most) const;

 private:
  static constexpr size_t kShortest = 2, kLongest = 4;
  uint64_t key(size_t end, size_t n) const;

  std::vector<int32_t> tokens_;
  // For each length, where the token after its latest occurrence stands; the text's end is not
  // among them.
  std::array<std::unordered_map<uint64_t, size_t>, kLongest + 1> after_;
};

// How many tokens to guess: more while guesses are right, and seldom where they are not.
class DraftPace {
 public:
  explicit DraftPace(int64_t most) : most_(most) {}
  int64_t next();  // for the pass that comes
  void report(int64_t guessed, int64_t right);

 private:
  int64_t most_, length_ = 2;
  int64_t wrong_in_turn_ = 0, pause_ = 0;
};

}  // namespace cutaway::inference
