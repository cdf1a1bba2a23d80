// SentencePiece's precompiled character map: what a normaliser (often NFKC with a few more rules)
// makes of each sequence of characters that it changes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/model_file.h"
#include "text/tokenizer/aligned_text.h"

namespace cutaway::text {

class CharacterMap {
 public:
  // tokenizer.ggml.precompiled_charsmap; without the key, a map that changes nothing. Errors
  // kInvalidFile: lengths that do not fit, a replacement outside the list or without an end.
  static Result<CharacterMap> read(const Metadata& metadata);

  bool empty() const { return units_.empty(); }
  // The longest sequence of the map at text[pos]: sets its bytes and what it becomes. false: none.
  bool find(std::string_view text, size_t pos, size_t& length, std::string_view& by) const {
    length = 0;
    if (units_.empty()) return false;
    // A double array: the child of a node for a byte is at (the node's base) ^ byte, and is one if
    // its label is that byte. A node that ends a sequence has its value at its base.
    size_t node = base(0);
    for (size_t at = pos; at < text.size(); ++at) {
      const uint32_t byte = static_cast<uint8_t>(text[at]);
      node ^= byte;
      if (byte == 0 || node >= units_.size() || (units_[node] & 0x800000FFu) != byte) break;
      const bool ends = units_[node] >> 8 & 1;
      node ^= base(node);
      if (!ends) continue;
      if (node >= units_.size()) break;
      length = at + 1 - pos;
      by = replacement(units_[node] & 0x7FFFFFFFu);
    }
    return length > 0;
  }

 private:
  size_t base(size_t node) const {
    const uint32_t unit = units_[node];
    return static_cast<size_t>(unit >> 10) << ((unit & 0x200u) >> 6);
  }
  std::string_view replacement(size_t offset) const {
    return offset < replacements_.size() ? std::string_view(replacements_.c_str() + offset)
                                         : std::string_view();
  }

  std::vector<uint32_t> units_;
  std::string replacements_;  // one after another, each with a NUL at its end
};

// A text under such a map. Bytes that are no character become U+FFFD.
class MappedText : public AlignedText {
 public:
  MappedText(std::string_view input, const CharacterMap& map);
};

}  // namespace cutaway::text
