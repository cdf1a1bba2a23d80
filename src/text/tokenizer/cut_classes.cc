#include "text/tokenizer/cuts.h"

#include <algorithm>

namespace cutaway::text {
namespace {

// A character as the classes below see it. One that is no valid character has code −1, no flags.
struct Character {
  int32_t code;
  uint16_t flags;
  size_t length;
};

Character character_at(const UnicodeTable& unicode, std::string_view text, size_t pos) {
  Character c{static_cast<uint8_t>(text[pos]), 0, 1};
  if (c.code >= 0x80) c.code = utf8_decode(text, pos, c.length);
  if (c.code >= 0) c.flags = unicode.flags(static_cast<uint32_t>(c.code));
  return c;
}

struct Range {
  int32_t first, last;  // inclusive
};
template <size_t n>
bool in_ranges(const Range (&ranges)[n], int32_t code) {
  const Range* r = std::lower_bound(std::begin(ranges), std::end(ranges), code,
                                    [](const Range& x, int32_t c) { return x.last < c; });
  return r != std::end(ranges) && r->first <= code;
}

// The letters of a case that DeepSeek LLM's expression lists, a Unicode version of its own.
constexpr Range kCased[] = {
    {0x41, 0x5A},       {0x61, 0x7A},       {0xB5, 0xB5},       {0xC0, 0xD6},
    {0xD8, 0xF6},       {0xF8, 0x1BA},      {0x1BC, 0x1BF},     {0x1C4, 0x293},
    {0x295, 0x2AF},     {0x370, 0x373},     {0x376, 0x377},     {0x37B, 0x37D},
    {0x37F, 0x37F},     {0x386, 0x386},     {0x388, 0x38A},     {0x38C, 0x38C},
    {0x38E, 0x3A1},     {0x3A3, 0x3F5},     {0x3F7, 0x481},     {0x48A, 0x52F},
    {0x531, 0x556},     {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},
    {0x1C90, 0x1CBA},   {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},
    {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},   {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},
    {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},   {0x1F5B, 0x1F5B},
    {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},   {0x1FB6, 0x1FBC},
    {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},
    {0x1FD6, 0x1FDB},   {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},
    {0x2102, 0x2102},   {0x2107, 0x2107},   {0x210A, 0x2113},   {0x2115, 0x2115},
    {0x2119, 0x211D},   {0x2124, 0x2124},   {0x2126, 0x2126},   {0x2128, 0x2128},
    {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},   {0x213C, 0x213F},
    {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2184},   {0x2C00, 0x2C7B},
    {0x2C7E, 0x2CE4},   {0x2CEB, 0x2CEE},   {0x2CF2, 0x2CF3},   {0xA640, 0xA66D},
    {0xA680, 0xA69B},   {0xA722, 0xA76F},   {0xA771, 0xA787},   {0xA78B, 0xA78E},
    {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},   {0xFF21, 0xFF3A},
    {0xFF41, 0xFF5A},   {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
    {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
};
constexpr Range kListedPunctuation[] = {
    {0x21, 0x2F},     {0x3A, 0x7E},     {0x2018, 0x201F},
    {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E},
};
constexpr Range kEastAsian[] = {{0x800, 0x9FA5}, {0xAC00, 0xD7FF}};
constexpr Range kHanAndKana[] = {{0x3040, 0x30FF}, {0x4E00, 0x9FA5}};
// ( | . , ! ? ) and the stops of Arabic, Devanagari, Urdu and Chinese, as BLOOM lists them
constexpr int32_t kBloomStops[] = {'(',   '|',   '.',   ',',    '!',    '?',    ')',
                                   0x60C, 0x6D4, 0x964, 0x2026, 0x3001, 0x3002, 0xFF0C};

using Class = bool (*)(const Character&);

bool is_number(const Character& c) { return c.flags & kNumber; }
bool is_letter(const Character& c) { return c.flags & kLetter; }
bool is_punctuation(const Character& c) { return c.flags & kPunctuation; }
bool is_bert_punctuation(const Character& c) { return c.flags & kBertPunctuation; }
bool is_line_break(const Character& c) { return c.code == '\r' || c.code == '\n'; }
bool is_line_feed(const Character& c) { return c.code == '\n'; }
bool is_cased(const Character& c) { return in_ranges(kCased, c.code); }
bool is_listed(const Character& c) { return in_ranges(kListedPunctuation, c.code); }
bool is_east_asian(const Character& c) { return in_ranges(kEastAsian, c.code); }
bool is_han_or_kana(const Character& c) { return in_ranges(kHanAndKana, c.code); }
bool is_digit(const Character& c) { return c.flags & kDigit; }
bool is_bloom_word(const Character& c) {
  return !(c.flags & kSpace) && std::ranges::find(kBloomStops, c.code) == std::end(kBloomStops);
}

constexpr size_t kAll = static_cast<size_t>(-1);
// What may stand once in front of the class: nothing, ' ' or \s.
enum class Lead { kNone, kBlank, kSpace };

// Where the expression matches from pos: lead? class{1,most}. pos itself: it does not.
template <Class in_class, size_t most, Lead lead>
size_t match(const UnicodeTable& unicode, std::string_view text, size_t pos) {
  size_t end = pos;
  Character c = character_at(unicode, text, pos);
  if constexpr (lead != Lead::kNone) {
    const bool leads = lead == Lead::kBlank ? c.code == ' ' : (c.flags & kSpace) != 0;
    if (leads && pos + c.length < text.size()) {
      const size_t next = pos + c.length;
      const Character first = character_at(unicode, text, next);
      if (in_class(first)) {
        end = next;
        c = first;
      }
    }
  }
  if (!in_class(c)) return pos;
  for (size_t n = 0; n < most && in_class(c); ++n) {
    end += c.length;
    if (end == text.size()) break;
    c = character_at(unicode, text, end);
  }
  return end;
}

// The match at pos, or what stands before the next one.
template <Class in_class, size_t most = kAll, Lead lead = Lead::kNone>
size_t cut(const UnicodeTable& unicode, std::string_view text, size_t pos) {
  const size_t end = match<in_class, most, lead>(unicode, text, pos);
  if (end > pos) return end;
  // Of the characters of the class, or that lead it, the first begins the next match.
  while (pos < text.size()) {
    const Character c = character_at(unicode, text, pos);
    if (in_class(c)) return pos;
    if constexpr (lead != Lead::kNone) {
      if (match<in_class, 1, lead>(unicode, text, pos) > pos) return pos;
    }
    pos += c.length;
  }
  return pos;
}

bool is_digit_byte(char c) {
  constexpr std::string_view kDigitBytes = "0123456789\xB2\xB3\xB9\xBC\xBD\xBE";
  return kDigitBytes.find(c) != std::string_view::npos;
}

size_t next_digit_bytes(const UnicodeTable&, std::string_view text, size_t pos) {
  const bool digits = is_digit_byte(text[pos]);
  while (pos < text.size() && is_digit_byte(text[pos]) == digits) ++pos;
  return pos;
}

size_t next_three_digits(const UnicodeTable&, std::string_view text, size_t pos) {
  const auto digits_at = [&](size_t at) {
    size_t n = 0;
    while (n < 3 && at + n < text.size() && text[at + n] >= '0' && text[at + n] <= '9') ++n;
    return n;
  };
  if (digits_at(pos) == 3) return pos + 3;
  while (pos < text.size() && digits_at(pos) < 3) ++pos;
  return pos;
}

size_t next_trailing_spaces(const UnicodeTable& unicode, std::string_view text, size_t pos) {
  size_t spaces = pos;  // where the white space that reaches to the end begins
  for (size_t at = pos; at < text.size();) {
    const Character c = character_at(unicode, text, at);
    at += c.length;
    if (!(c.flags & kSpace)) spaces = at;
  }
  return spaces > pos ? spaces : text.size();
}

}  // namespace

constexpr ClassCuts kClassCuts = {
    .line_breaks = cut<is_line_break, 1>,
    .lines = cut<is_line_feed>,
    .digits = cut<is_digit, 1>,
    .each_number = cut<is_number, 1>,
    .three_numbers = cut<is_number, 3>,
    .punctuation = cut<is_bert_punctuation>,
    .digit_bytes = next_digit_bytes,
    .three_digits = next_three_digits,
    .bloom = cut<is_bloom_word, kAll, Lead::kBlank>,
    .letters = cut<is_letter, kAll, Lead::kSpace>,
    .any_punctuation = cut<is_punctuation, kAll, Lead::kSpace>,
    .east_asian = cut<is_east_asian>,
    .cased_letters = cut<is_cased, kAll, Lead::kSpace>,
    .listed_punctuation = cut<is_listed, kAll, Lead::kSpace>,
    .trailing_spaces = next_trailing_spaces,
    .han_and_kana = cut<is_han_or_kana>,
};

}  // namespace cutaway::text
