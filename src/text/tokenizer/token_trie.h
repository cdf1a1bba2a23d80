// The tokens of a vocabulary as a tree of bytes: all that begin at a place of a text, in one walk.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizer/vocabulary.h"

namespace cutaway::text {

class TokenTrie {
 public:
  explicit TokenTrie(const Vocabulary& vocabulary);  // of the tokens of text

  // Calls on_token(id, end) for each token that text[pos, end) spells, the shortest first.
  template <typename OnToken>
  void find(std::string_view text, size_t pos, OnToken&& on_token) const {
    uint32_t node = 0;
    while (pos < text.size()) {
      const uint8_t byte = static_cast<uint8_t>(text[pos++]);
      uint32_t low = nodes_[node].children, high = low + nodes_[node].count;
      while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (nodes_[middle].byte < byte) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      if (low == nodes_[node].children + nodes_[node].count || nodes_[low].byte != byte) return;
      node = low;
      if (nodes_[node].id >= 0) on_token(nodes_[node].id, pos);
    }
  }

 private:
  struct Node {
    uint32_t children = 0;  // the first; they stand side by side, bytes ascending
    int32_t id = -1;        // the token that ends here
    uint16_t count = 0;
    uint8_t byte = 0;
  };
  std::vector<Node> nodes_;
};

}  // namespace cutaway::text
