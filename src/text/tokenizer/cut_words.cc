#include "text/tokenizer/cuts.h"

#include <algorithm>
#include <cstdint>

namespace cutaway::text {
namespace {

constexpr unsigned kWordOrSpace = kSpace | kLetter | kNumber;

// End of the run of characters from pos whose flags, masked, are zero (want = false) or not.
template <bool want>
size_t run(const UnicodeTable& unicode, std::string_view text, size_t pos, unsigned mask) {
  size_t length = 0;
  while (pos < text.size() && ((unicode.at(text, pos, length) & mask) != 0) == want) pos += length;
  return pos;
}

bool is_newline(char c) { return c == '\r' || c == '\n'; }

// Length of 's 't 're 've 'm 'll 'd at pos, where text[pos] is the apostrophe; 0: none. With
// `fold`, in any case, and then U+017F (long s) is an s too, as under Unicode's simple folding.
size_t contraction(std::string_view text, size_t pos, bool fold) {
  const auto letter = [&](size_t i) -> char {
    if (i >= text.size()) return 0;
    const char c = text[i];
    return fold && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = letter(pos + 1), second = letter(pos + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  if (fold && first == '\xC5' && second == '\xBF') return 3;
  return 0;
}

// A run of white space from pos that no other alternative took: \s+(?!\S)|\s+. All of it at the
// text's end (or before `stop_flag`, where the caller cuts the text), else all but its last
// character, which belongs to what follows.
size_t spaces(const UnicodeTable& unicode, std::string_view text, size_t pos, unsigned stop_flag) {
  size_t end = pos, last = pos, length = 0;
  while (end < text.size()) {
    const unsigned flags = unicode.at(text, end, length);
    if (!(flags & kSpace)) {
      if (flags & stop_flag) return end;
      return last > pos ? last : end;
    }
    last = end;
    end += length;
  }
  return end;
}

// With kDigits every digit has been cut off before, so that the text ends in front of it.
template <bool kDigits>
size_t next_gpt2(const UnicodeTable& unicode, std::string_view text, size_t pos) {
  constexpr unsigned kCut = kDigits ? static_cast<unsigned>(kDigit) : 0u;
  size_t length = 0;
  unsigned flags = unicode.at(text, pos, length);
  if (kDigits && (flags & kDigit)) return pos + length;
  if (text[pos] == '\'') {
    if (const size_t n = contraction(text, pos, false)) return pos + n;
  }
  size_t word = pos;
  if (text[pos] == ' ' && pos + 1 < text.size()) {
    word = pos + 1;
    flags = unicode.at(text, word, length);
    if (kDigits && (flags & kDigit)) return word;
  }
  if (flags & kSpace) return spaces(unicode, text, pos, kCut);
  if (flags & kLetter) return run<true>(unicode, text, word, kLetter);
  if (flags & kNumber) return run<true>(unicode, text, word, kNumber);
  return run<false>(unicode, text, word, kWordOrSpace | kCut);
}

// What follows a run of symbols: [\r\n]*, [\r\n/]* or nothing.
enum class Tail { kBreaks, kBreaksAndSlashes, kNone };

// | ?[^\s\p{L}\p{N}]+ and its tail; `stop` are the flags that end the symbols. pos: no match.
template <Tail tail>
size_t symbols(const UnicodeTable& unicode, std::string_view text, size_t pos, unsigned stop) {
  size_t length = 0;
  size_t begin = pos;
  unsigned flags = unicode.at(text, pos, length);
  if (text[pos] == ' ' && pos + 1 < text.size()) {
    begin = pos + 1;
    flags = unicode.at(text, begin, length);
  }
  if (flags & stop) return pos;
  size_t end = run<false>(unicode, text, begin + length, stop);
  if constexpr (tail != Tail::kNone) {
    while (end < text.size() &&
           (is_newline(text[end]) || (tail == Tail::kBreaksAndSlashes && text[end] == '/'))) {
      ++end;
    }
  }
  return end;
}

// White space: up to its last line break if it has one, else as spaces().
size_t breaks_or_spaces(const UnicodeTable& unicode, std::string_view text, size_t pos) {
  size_t end = pos, last_break = pos, length = 0;
  while (end < text.size() && (unicode.at(text, end, length) & kSpace)) {
    if (is_newline(text[end])) last_break = end + 1;
    end += length;
  }
  return last_break > pos ? last_break : spaces(unicode, text, pos, 0);
}

// Jais 2 cuts white space into 512, 256, … 4, then 2 or 1, none of them right before a letter.
size_t jais_spaces(const UnicodeTable& unicode, std::string_view text, size_t pos) {
  size_t ends[513];  // ends[n]: where the n-th character of the run ends
  size_t n = 0, length = 0, end = pos;
  while (n < 512 && end < text.size() && (unicode.at(text, end, length) & kSpace)) {
    end += length;
    ends[++n] = end;
  }
  // May a piece of k characters stand here? Something that is no white space may not follow.
  const auto fits = [&](size_t k) {
    return k < n || (k == n && (end == text.size() || (unicode.at(text, end, length) & kSpace)));
  };
  for (size_t k = 512; k >= 4; k /= 2) {
    if (fits(k)) return ends[k];
  }
  return fits(2) ? ends[2] : ends[1];
}

struct Gpt4Kind {
  int numbers = 1;            // \p{N}{1,numbers}; 0: \p{N}+
  unsigned letter = kLetter;  // what words are made of
  bool contractions = true;
  Tail tail = Tail::kBreaks;
  bool jais = false;
};

template <Gpt4Kind kind>
size_t next_gpt4(const UnicodeTable& unicode, std::string_view text, size_t pos) {
  size_t length = 0, following = 0;
  const unsigned flags = unicode.at(text, pos, length);
  const char c = text[pos];
  if (flags & kind.letter) return run<true>(unicode, text, pos, kind.letter);
  if (kind.contractions && c == '\'') {
    if (const size_t n = contraction(text, pos, true)) return pos + n;
  }
  if (flags & kNumber) {
    if (kind.numbers == 0) return run<true>(unicode, text, pos, kNumber);
    for (int i = 1; i < kind.numbers; ++i) {
      const size_t at = pos + length;
      if (at >= text.size() || !(unicode.at(text, at, following) & kNumber)) break;
      length += following;
    }
    return pos + length;
  }
  const size_t after = pos + length;
  if (after < text.size() && !is_newline(c) && (unicode.at(text, after, following) & kind.letter)) {
    return run<true>(unicode, text, after, kind.letter);
  }
  const size_t end = symbols<kind.tail>(unicode, text, pos, kind.letter | kSpace | kNumber);
  if (end > pos) return end;
  if constexpr (kind.jais) {
    const size_t line = breaks_or_spaces(unicode, text, pos);
    return is_newline(text[line - 1]) ? line : jais_spaces(unicode, text, pos);
  }
  return breaks_or_spaces(unicode, text, pos);
}

// [upper and caseless]*[lower and caseless]+ from pos, or where kUpperOnly, [upper and caseless]+
// alone; pos: no match. Backtracking gives up capitals from the end until a caseless one is last.
template <bool kUpperOnly>
size_t cased_word(const UnicodeTable& unicode, std::string_view text, size_t pos) {
  size_t end = pos, caseless_end = pos, length = 0;
  unsigned flags = 0;
  for (; end < text.size(); end += length) {
    flags = unicode.at(text, end, length);
    if (!(flags & (kLetter | kMark)) || (flags & kLower)) break;
    if (!(flags & kUpper)) caseless_end = end + length;
  }
  if (kUpperOnly) return end;
  if (end == text.size() || !(flags & kLower)) return caseless_end;
  for (; end < text.size(); end += length) {
    flags = unicode.at(text, end, length);
    if (!(flags & (kLetter | kMark)) || (flags & kUpper)) break;
  }
  return end;
}

// The word that begins at pos, or at `after` when pos may lead one; pos: none. The four ways to
// make it are tried in the expression's order.
size_t match_cased_word(const UnicodeTable& unicode, std::string_view text, size_t pos,
                        size_t after) {
  size_t end = cased_word<false>(unicode, text, after);
  if (end > after) return end;
  if (after > pos && (end = cased_word<false>(unicode, text, pos)) > pos) return end;
  if ((end = cased_word<true>(unicode, text, after)) > after) return end;
  return after > pos ? cased_word<true>(unicode, text, pos) : pos;
}

template <bool kContractions, int kNumbers>
size_t next_gpt4o(const UnicodeTable& unicode, std::string_view text, size_t pos) {
  size_t length = 0, following = 0;
  const unsigned flags = unicode.at(text, pos, length);
  const bool may_lead = !is_newline(text[pos]) && !(flags & (kLetter | kNumber));
  size_t end = match_cased_word(unicode, text, pos, may_lead ? pos + length : pos);
  if (end > pos) {
    if (kContractions && end < text.size() && text[end] == '\'') {
      end += contraction(text, end, true);
    }
    return end;
  }
  if (flags & kNumber) {
    for (int i = 1; i < kNumbers; ++i) {
      const size_t at = pos + length;
      if (at >= text.size() || !(unicode.at(text, at, following) & kNumber)) break;
      length += following;
    }
    return pos + length;
  }
  end = symbols<Tail::kBreaksAndSlashes>(unicode, text, pos, kWordOrSpace);
  return end > pos ? end : breaks_or_spaces(unicode, text, pos);
}

bool is_ascii_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

// Where DeepSeek V3's expression matches from pos; pos: it does not (control characters, numbers).
size_t match_deepseek3(const UnicodeTable& unicode, std::string_view text, size_t pos) {
  constexpr unsigned kWord = kLetter | kMark, kSign = kPunctuation | kSymbol;
  size_t length = 0, following = 0;
  const unsigned flags = unicode.at(text, pos, length);
  const size_t after = pos + length;
  const bool ascii = static_cast<uint8_t>(text[pos]) < 0x80;
  if (ascii && (flags & kSign) && after < text.size() && is_ascii_letter(text[after])) {
    size_t end = after;
    while (end < text.size() && is_ascii_letter(text[end])) ++end;
    return end;
  }
  if (flags & kWord) return run<true>(unicode, text, pos, kWord);
  const unsigned next = after < text.size() ? unicode.at(text, after, following) : 0u;
  if (!is_newline(text[pos]) && !(flags & kSign) && (next & kWord)) {
    return run<true>(unicode, text, after, kWord);
  }
  if ((flags & kSign) || (text[pos] == ' ' && (next & kSign))) {
    size_t end = run<true>(unicode, text, (flags & kSign) ? pos : after, kSign);
    while (end < text.size() && is_newline(text[end])) ++end;
    return end;
  }
  return flags & kSpace ? breaks_or_spaces(unicode, text, pos) : pos;
}

size_t next_deepseek3(const UnicodeTable& unicode, std::string_view text, size_t pos) {
  size_t end = match_deepseek3(unicode, text, pos);
  if (end > pos) return end;
  size_t length = 0;
  for (end = pos; end < text.size(); end += length) {
    if (end > pos && match_deepseek3(unicode, text, end) > end) break;
    unicode.at(text, end, length);
  }
  return end;
}

}  // namespace

constexpr WordCuts kWordCuts = {
    .gpt2 = next_gpt2<false>,
    .digits_gpt2 = next_gpt2<true>,
    .gpt4 = next_gpt4<Gpt4Kind{.numbers = 3}>,
    .jais2 = next_gpt4<Gpt4Kind{.numbers = 3, .jais = true}>,
    .qwen2 = next_gpt4<Gpt4Kind{}>,
    .minicpm5 = next_gpt4<Gpt4Kind{.numbers = 0}>,
    .qwen35 = next_gpt4<Gpt4Kind{.letter = kLetter | kMark}>,
    .seed = next_gpt4<Gpt4Kind{.tail = Tail::kNone}>,
    .ufakzeka = next_gpt4<Gpt4Kind{.contractions = false}>,
    .gpt4o = next_gpt4o<true, 3>,
    .tekken = next_gpt4o<false, 1>,
    .deepseek3 = next_deepseek3,
};

}  // namespace cutaway::text
