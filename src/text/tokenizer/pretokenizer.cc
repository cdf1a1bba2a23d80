#include "text/tokenizer/pretokenizer.h"

#include <cstdint>

#include "trace/trace.h"

namespace cutaway::text {
namespace {

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
    const uint8_t flags = unicode.at(text, end, length);
    if (!(flags & kSpace)) {
      if (flags & stop_flag) return end;
      return last > pos ? last : end;
    }
    last = end;
    end += length;
  }
  return end;
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// With kDigits every digit has been cut off before, so that the text ends in front of it.
template <bool kDigits>
size_t next_gpt2(const UnicodeTable& unicode, std::string_view text, size_t pos) {
  constexpr unsigned kCut = kDigits ? static_cast<unsigned>(kDigit) : 0u;
  size_t length = 0;
  uint8_t flags = unicode.at(text, pos, length);
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
  return run<false>(unicode, text, word, kSpace | kLetter | kNumber | kCut);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,kNumbers}
// | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
template <int kNumbers>
size_t next_qwen2(const UnicodeTable& unicode, std::string_view text, size_t pos) {
  size_t length = 0, following = 0;
  const uint8_t flags = unicode.at(text, pos, length);
  const char c = text[pos];
  if (flags & kLetter) return run<true>(unicode, text, pos, kLetter);
  if (c == '\'') {
    if (const size_t n = contraction(text, pos, true)) return pos + n;
  }
  if (flags & kNumber) {
    for (int i = 1; i < kNumbers; ++i) {
      const size_t at = pos + length;
      if (at >= text.size() || !(unicode.at(text, at, following) & kNumber)) break;
      length += following;
    }
    return pos + length;
  }
  const size_t after = pos + length;
  uint8_t next = 0;
  const bool more = after < text.size();
  if (more) next = unicode.at(text, after, following);
  if (more && (next & kLetter) && !is_newline(c)) return run<true>(unicode, text, after, kLetter);

  constexpr uint8_t kWord = kSpace | kLetter | kNumber;
  if (!(flags & kSpace) || (c == ' ' && more && !(next & kWord))) {
    size_t end = run<false>(unicode, text, after, kWord);
    while (end < text.size() && is_newline(text[end])) ++end;
    return end;
  }
  // White space: up to its last line break if it has one.
  size_t end = pos, last_break = pos;
  while (end < text.size() && (unicode.at(text, end, length) & kSpace)) {
    if (is_newline(text[end])) last_break = end + 1;
    end += length;
  }
  return last_break > pos ? last_break : spaces(unicode, text, pos, 0);
}

constexpr PreTokenizer kKnown[] = {
    {"smollm", next_gpt2<true>, false, false, false},
    {"gpt-2", next_gpt2<false>, false, false, false},
    {"qwen2", next_qwen2<1>, true, false, false},
    {"llama-bpe", next_qwen2<3>, false, true, true},
};

struct Alias {
  std::string_view pre, name;
};
constexpr Alias kAliases[] = {
    {"", "gpt-2"},           {"default", "gpt-2"},      {"gpt2", "gpt-2"},
    {"llama3", "llama-bpe"}, {"llama-v3", "llama-bpe"},
};

}  // namespace

Result<const PreTokenizer*> find_pre_tokenizer(const std::string& pre) {
  CUTAWAY_SPAN(span, "text::find_pre_tokenizer", "pre", pre);
  std::string_view name = pre;
  for (const Alias& alias : kAliases) {
    if (alias.pre == pre) name = alias.name;
  }
  for (const PreTokenizer& known : kKnown) {
    if (known.name == name) {
      CUTAWAY_OUT(span, "name", known.name);
      return &known;
    }
  }
  return Error{ErrorCode::kUnsupported,
               "tokenizer.ggml.pre is \"" + pre +
                   "\"; this build knows smollm, gpt-2 (also gpt2, default), qwen2 and llama-bpe "
                   "(also llama3, llama-v3)",
               "tokenizer.ggml.pre"};
}

}  // namespace cutaway::text
