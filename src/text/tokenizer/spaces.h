// What SentencePiece does to spaces before it looks for tokens.
#pragma once

#include <string_view>

#include "base/result.h"
#include "tensor/model_file.h"
#include "text/tokenizer/aligned_text.h"

namespace cutaway::text {

struct SpaceRules {
  bool add_prefix = false;    // a space in front of a text, and after each token found as a whole
  bool remove_extra = false;  // none at either end, one between words

  // tokenizer.ggml.add_space_prefix and .remove_extra_whitespaces, with these as the defaults.
  // Errors name the key.
  static Result<SpaceRules> read(const Metadata& metadata, SpaceRules defaults);
};

// A text under these rules. Its own U+2581, SentencePiece's sign for a space, becomes a space too:
// the two are the same to the model.
class SpacedText : public AlignedText {
 public:
  SpacedText(std::string_view input, SpaceRules rules);
};

}  // namespace cutaway::text
