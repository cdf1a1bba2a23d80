#include "text/tokenizer/token_trie.h"

#include <algorithm>

#include "trace/trace.h"

namespace cutaway::text {

TokenTrie::TokenTrie(const Vocabulary& vocabulary) : nodes_(1) {
  CUTAWAY_SPAN(span, "text::TokenTrie::TokenTrie", "tokens", vocabulary.size());
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    // Of equal tokens the one that find_text gives.
    if (vocabulary.is_text(id) && vocabulary.find_text(vocabulary.bytes(id)) == id) {
      ids.push_back(id);
    }
  }
  std::sort(ids.begin(), ids.end(),
            [&](int32_t a, int32_t b) { return vocabulary.bytes(a) < vocabulary.bytes(b); });
  // Level by level, so that children are neighbours: each node stands for ids[begin, end), whose
  // first `depth` bytes are equal.
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> ranges = {{0, ids.size(), 0}};
  for (size_t node = 0; node < nodes_.size(); ++node) {
    Range range = ranges[node];
    if (range.begin < range.end && vocabulary.bytes(ids[range.begin]).size() == range.depth) {
      nodes_[node].id = ids[range.begin++];
    }
    nodes_[node].children = static_cast<uint32_t>(nodes_.size());
    for (size_t i = range.begin; i < range.end;) {
      const char byte = vocabulary.bytes(ids[i])[range.depth];
      size_t end = i + 1;
      while (end < range.end && vocabulary.bytes(ids[end])[range.depth] == byte) ++end;
      nodes_.push_back({.byte = static_cast<uint8_t>(byte)});
      ranges.push_back({i, end, range.depth + 1});
      ++nodes_[node].count;
      i = end;
    }
  }
  CUTAWAY_OUT(span, "nodes", nodes_.size());
}

}  // namespace cutaway::text
