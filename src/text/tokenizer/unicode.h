// What the pre-tokenizers and the normaliser must know of each code point. The classes are those
// that Hugging Face `tokenizers` uses (tools/make_unicode_tables.py asks it).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/utf8.h"

namespace cutaway::text {

enum UnicodeFlag : uint16_t {
  kLetter = 1,        // \p{L}
  kNumber = 2,        // \p{N}
  kSpace = 4,         // \s
  kDigit = 8,         // split off one by one by the Digits pre-tokenizer
  kNfcUnsafe = 16,    // may change under NFC, alone or with what stands before it
  kPunctuation = 32,  // \p{P}
  kSymbol = 64,       // \p{S}
  kMark = 128,        // \p{M}
  kUpper = 256,       // \p{Lu} or \p{Lt}
  kLower = 512,       // \p{Ll}
  // What BERT's normaliser and pre-tokenizer see; their punctuation is also that of Falcon's.
  kBertPunctuation = 1024,
  kBertRemoved = 2048,  // left out: control characters and the like
  kBertSpace = 4096,
  kBertAccent = 8192,  // \p{Mn}: stripped
};

struct UnicodeRange {
  uint32_t first, last;  // inclusive
  uint16_t flags;
};
extern const UnicodeRange kUnicodeRanges[];  // ascending, unicode_tables.cc
extern const size_t kUnicodeRangeCount;

// The ranges as a two-level table: one look-up a character. Made once, at first use.
class UnicodeTable {
 public:
  static const UnicodeTable& get();

  uint16_t flags(uint32_t code_point) const {
    return cells_[static_cast<size_t>(block_[code_point >> kShift]) << kShift |
                  (code_point & kMask)];
  }

  // Flags of the character at text[pos], and its length. A byte that begins no valid character is
  // a character of its own without flags.
  uint16_t at(std::string_view text, size_t pos, size_t& length) const {
    const uint8_t byte = static_cast<uint8_t>(text[pos]);
    if (byte < 0x80) [[likely]] {
      length = 1;
      return ascii_[byte];
    }
    const int32_t code_point = utf8_decode(text, pos, length);
    return code_point < 0 ? 0 : flags(static_cast<uint32_t>(code_point));
  }

 private:
  static constexpr int kShift = 7;
  static constexpr uint32_t kMask = (1u << kShift) - 1;

  UnicodeTable();

  std::array<uint16_t, 128> ascii_;  // the first of them again: no look-up
  std::vector<uint16_t> block_;      // code point / 128 → block of cells_
  std::vector<uint16_t> cells_;
};

}  // namespace cutaway::text
