// The published expressions by which texts are cut before BPE, as scanners: one pass, no
// backtracking, no limit that a long run could hit.
#pragma once

#include <cstddef>
#include <string_view>

#include "text/tokenizer/unicode.h"

namespace cutaway::text {

// End of the piece that begins at text[pos]: of what the expression matches there, or of the text
// in front of its next match. Precondition: pos < text.size(). The text's end counts as an end for
// the expression's look-ahead. Always greater than pos.
using CutFunction = size_t (*)(const UnicodeTable& unicode, std::string_view text, size_t pos);

// Expressions that cut a text into words.
struct WordCuts {
  // GPT-2's:
  //   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  CutFunction gpt2;
  CutFunction digits_gpt2;  // after Hugging Face's Digits step, in one pass: every digit is a piece

  // GPT-4's, and its many variations (… is what the others have too):
  //   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}
  //   | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  CutFunction gpt4;
  CutFunction jais2;     // … \s{512}(?!\S)|\s{256}(?!\S)| … |\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}
  CutFunction qwen2;     // … \p{N} …
  CutFunction minicpm5;  // … \p{N}+ …
  CutFunction qwen35;    // … [^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]* …
  CutFunction seed;      // … \p{N}| ?[^\s\p{L}\p{N}\r\n]+ …
  CutFunction ufakzeka;  // qwen2's without the contractions

  // GPT-4o's; U is [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], L is [\p{Ll}\p{Lm}\p{Lo}\p{M}]:
  //   [^\r\n\p{L}\p{N}]?U*L+(?i:'s|…|'d)?|[^\r\n\p{L}\p{N}]?U+L*(?i:'s|…|'d)?|\p{N}{1,3}
  //   | ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
  CutFunction gpt4o;
  CutFunction tekken;  // Mistral's: without the contractions, \p{N}

  // DeepSeek V3's last:
  //   [!-/:-@[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*
  //   |\s*[\r\n]+|\s+(?!\S)|\s+
  CutFunction deepseek3;
};
extern const WordCuts kWordCuts;

// Expressions that only set apart runs of a class of characters.
struct ClassCuts {
  CutFunction line_breaks;    // [\r\n]
  CutFunction lines;          // [^\n]+|[\n]+
  CutFunction digits;         // Hugging Face's Digits, one by one
  CutFunction each_number;    // \p{N}
  CutFunction three_numbers;  // \p{N}{1,3}
  CutFunction punctuation;    // Falcon: Hugging Face's Punctuation, contiguous
  CutFunction digit_bytes;    // Falcon: Digits, contiguous, on what stands for bytes: see below
  CutFunction three_digits;   // Falcon: [0-9][0-9][0-9]
  CutFunction bloom;          //  ?[^(\s|.,!?…。，、।۔،)]+

  // DeepSeek Coder:
  CutFunction letters;          // \s?\p{L}+
  CutFunction any_punctuation;  // \s?\p{P}+
  CutFunction east_asian;       // [一-龥ࠀ-一가-퟿]+, of DeepSeek LLM too
  // DeepSeek LLM:
  CutFunction cased_letters;       // \s?[…]+, letters that have a case, as listed there
  CutFunction listed_punctuation;  // \s?[!-/:-~！-／：-～‘-‟\u3000-。]+
  CutFunction trailing_spaces;     // \s+$
  CutFunction han_and_kana;        // DeepSeek V3: [一-龥\u3040-ゟ゠-ヿ]+
};
// Falcon's Digits step follows ByteLevel, whose characters for the bytes B2, B3, B9, BC, BD and BE
// (as in "м", D0 BC) are ² ³ ¹ ¼ ½ ¾: runs of those and of 0-9 are cut out of the bytes around
// them, in the midst of a character too.
extern const ClassCuts kClassCuts;

}  // namespace cutaway::text
