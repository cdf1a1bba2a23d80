#include "base/suggest.h"

#include <algorithm>
#include <numeric>

namespace cutaway {
namespace {

constexpr size_t kLongest = 256;  // longer words are no typing mistakes

// Edits between two words: a letter more, less or other, or two neighbours swapped (optimal string
// alignment).
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  std::iota(previous.begin(), previous.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    current[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = previous[j] + (a[i] == b[j] ? 0 : 1);
      current[j + 1] = std::min({replaced, previous[j + 1] + 1, current[j] + 1});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j]) {
        current[j + 1] = std::min(current[j + 1], before[j - 1] + 1);
      }
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

}  // namespace

std::string nearest_word(const std::string& word, const std::vector<std::string>& known) {
  std::string nearest;
  if (word.size() > kLongest) return nearest;
  size_t best = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    if (candidate.size() > kLongest) continue;
    const bool begins = word.size() >= 3 && candidate.starts_with(word);
    const size_t distance = begins ? 1 : edit_distance(word, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace cutaway
