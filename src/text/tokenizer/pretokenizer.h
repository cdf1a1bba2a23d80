// Pre-tokenizers: where a text is cut before BPE. Each is one or more published regular
// expressions, one applied to the pieces of the one before; each is written as a scanner: one pass,
// no backtracking, no limit that a long run could hit.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/tokenizer/cuts.h"

namespace cutaway::text {

struct PreTokenizer {
  static constexpr size_t kMaxSteps = 6;

  std::string_view name;                     // as the file writes it: "smollm", "gpt-2", "qwen2", …
  std::array<CutFunction, kMaxSteps> steps;  // the first is there; a null one ends the list
  bool nfc = false;                          // the text is brought to NFC first
  bool ignore_merges = false;  // a pre-token that is a token is that token, whatever merges give
  bool add_bos = false;        // what holds when the file has no add_bos_token

  // Calls on_word(word) for each pre-token of a text, in order, until one is an error.
  template <typename OnWord>
  Status for_each_word(const UnicodeTable& unicode, std::string_view text, OnWord&& on_word) const {
    return cut_from(0, unicode, text, on_word);
  }

 private:
  template <typename OnWord>
  Status cut_from(size_t step, const UnicodeTable& unicode, std::string_view text,
                  OnWord& on_word) const {
    const bool last = step + 1 == kMaxSteps || !steps[step + 1];
    for (size_t pos = 0; pos < text.size();) {
      const size_t end = steps[step](unicode, text, pos);
      const std::string_view piece = text.substr(pos, end - pos);
      if (last) {
        CUTAWAY_TRY(on_word(piece));
      } else {
        CUTAWAY_TRY(cut_from(step + 1, unicode, piece, on_word));
      }
      pos = end;
    }
    return {};
  }
};

// The pre-tokenizer for a value of tokenizer.ggml.pre ("" when the key is absent). Error
// kUnsupported names the value and those that are known.
Result<const PreTokenizer*> find_pre_tokenizer(const std::string& pre);

}  // namespace cutaway::text
