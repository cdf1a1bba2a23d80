// Unicode normalisation form C with a way back: which bytes of the input a normalised byte is from.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/unicode.h"

namespace cutaway::text {

// The NFC of a text, as Hugging Face `tokenizers` makes it (its Unicode version: characters newer
// than it stay as they are). Bytes that are not UTF-8 stay too. Where NFC changes nothing, which is
// nearly always, `text` is the input itself and nothing is copied.
class NfcText {
 public:
  NfcText(const UnicodeTable& unicode, std::string_view input);
  NfcText(const NfcText&) = delete;
  NfcText& operator=(const NfcText&) = delete;

  std::string_view text() const { return text_; }
  bool changed() const { return !changes_.empty(); }

  // Byte range in the input for a range of text(). A run that NFC rewrote is one whole: a range
  // that begins or ends inside it covers all of it, so that ranges of neighbours may overlap there.
  size_t input_begin(size_t pos) const;
  size_t input_end(size_t pos) const;

  // A run that was rewritten.
  struct Change {
    size_t out_begin, out_end, in_begin, in_end;
  };

 private:
  std::string_view text_;  // the input, or out_
  std::string out_;
  std::vector<Change> changes_;  // ascending
};

}  // namespace cutaway::text
