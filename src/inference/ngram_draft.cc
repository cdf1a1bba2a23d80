#include "inference/ngram_draft.h"

#include <algorithm>

#include "base/hash_mix.h"
#include "trace/trace.h"

namespace cutaway::inference {

uint64_t NgramDraft::key(size_t end, size_t n) const {
  uint64_t out = n;
  for (size_t i = end - n; i < end; ++i) {
    out = mix64(out + static_cast<uint32_t>(tokens_[i]) + 1, 0x9E3779B97F4A7C15ULL);
  }
  return out;
}

void NgramDraft::add(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    // Those that end before it are followed by it.
    for (size_t n = kShortest; n <= kLongest && n <= tokens_.size(); ++n) {
      after_[n][key(tokens_.size(), n)] = tokens_.size();
    }
    tokens_.push_back(token);
  }
}

std::vector<int32_t> NgramDraft::guess(int64_t most) const {
  CUTAWAY_SPAN(span, "inference::NgramDraft::guess", "most", most, "tokens", tokens_.size());
  std::vector<int32_t> out;
  for (size_t n = std::min(kLongest, tokens_.size()); n >= kShortest && out.empty(); --n) {
    const auto found = after_[n].find(key(tokens_.size(), n));
    if (found == after_[n].end()) continue;
    const auto at = tokens_.begin() + static_cast<int64_t>(found->second);
    if (!std::equal(at - static_cast<int64_t>(n), at, tokens_.end() - static_cast<int64_t>(n))) {
      continue;  // another text with this key
    }
    out.assign(at, at + std::min(most, tokens_.end() - at));
  }
  CUTAWAY_OUT(span, "guess", out);
  return out;
}

int64_t DraftPace::next() {
  if (pause_ > 0) {
    --pause_;
    return 0;
  }
  return std::min(length_, most_);
}

void DraftPace::report(int64_t guessed, int64_t right) {
  if (guessed == 0) return;
  if (right == guessed) length_ = std::min(2 * length_, most_);
  if (right < guessed) length_ = std::max<int64_t>(2, right);
  wrong_in_turn_ = right > 0 ? 0 : wrong_in_turn_ + 1;
  if (wrong_in_turn_ > 1) pause_ = int64_t{1} << std::min<int64_t>(wrong_in_turn_, 7);
}

}  // namespace cutaway::inference
