// Pre-tokenizers: where a text is cut before BPE. Each is a published regular expression, written
// as a scanner: one pass, no backtracking, no limit that a long run could hit.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/tokenizer/unicode.h"

namespace cutaway::text {

struct PreTokenizer {
  std::string_view name;  // as the file writes it: "smollm", "gpt-2", "qwen2", "llama-bpe"
  // End of the pre-token that begins at text[pos]. Precondition: pos < text.size(). The text's end
  // counts as an end for the expression's look-ahead. Always greater than pos.
  size_t (*next)(const UnicodeTable& unicode, std::string_view text, size_t pos);
  bool nfc;            // the text is brought to NFC first
  bool ignore_merges;  // a pre-token that is a token is that token, whatever merges would give
  bool add_bos;        // what holds when the file has no add_bos_token
};

// The pre-tokenizer for a value of tokenizer.ggml.pre ("" when the key is absent). Error
// kUnsupported names the value and those that are known.
Result<const PreTokenizer*> find_pre_tokenizer(const std::string& pre);

}  // namespace cutaway::text
