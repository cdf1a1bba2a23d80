// Unicode normalisation form C with a way back: which bytes of the input a normalised byte is from.
#pragma once

#include <string_view>

#include "text/tokenizer/aligned_text.h"
#include "text/tokenizer/unicode.h"

namespace cutaway::text {

// The NFC of a text, as Hugging Face `tokenizers` makes it (its Unicode version: characters newer
// than it stay as they are). Bytes that are not UTF-8 stay too.
class NfcText : public AlignedText {
 public:
  NfcText(const UnicodeTable& unicode, std::string_view input);
};

}  // namespace cutaway::text
