// "Did you mean …?"
#pragma once

#include <string>
#include <vector>

namespace cutaway {

// Of `known` the word that `word` was probably meant to be (it begins with it, or few edits lie
// between); empty when none is near.
std::string nearest_word(const std::string& word, const std::vector<std::string>& known);

}  // namespace cutaway
