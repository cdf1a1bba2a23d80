#include <utf8proc.h>

#include <algorithm>

#include "text/tokenizer/unicode.h"
#include "text/tokenizer/vocabulary_tokenizer.h"
#include "trace/trace.h"

namespace cutaway::text {
namespace {

constexpr size_t kMaxCharacters = 100;  // of a word; a longer one is unknown, as in BERT

struct BertRules {
  bool lowercase = true, strip_accents = true;
};

// A word as BERT sees it, and where each of its bytes is from.
struct Word {
  std::string text;  // begins with a space, as the tokens that begin a word do
  std::vector<std::pair<size_t, size_t>> origin;  // of each byte of text: [begin, end) in the input
  size_t characters = 0;

  bool empty() const { return characters == 0; }
  void clear() {
    text.assign(1, ' ');
    origin.assign(1, {0, 0});
    characters = 0;
  }
  void add(uint32_t code_point, size_t begin, size_t end) {
    utf8_append(text, code_point);
    origin.resize(text.size(), {begin, end});
    if (characters++ == 0) origin[0] = {begin, begin};
  }
  void add_byte(char byte, size_t begin) {
    text += byte;
    origin.push_back({begin, begin + 1});
    if (characters++ == 0) origin[0] = {begin, begin};
  }
};

// The blocks that BERT sets apart as Chinese.
bool is_cjk(uint32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) ||
         (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

class WordPieceTokenizer final : public VocabularyTokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> create(const Metadata& metadata);

  WordPieceTokenizer(Parts parts, BertRules rules)
      : VocabularyTokenizer(std::move(parts)), rules_(rules) {}

  Result<std::vector<EncodedToken>> encode(std::span<const Segment> segments,
                                           const EncodeOptions& options) const override;
  Result<std::vector<TracedWord>> trace_merges(std::span<const Segment> segments) const override;
  std::string_view pre_tokenizer_name() const override { return ""; }
  Normalization normalization() const override { return Normalization::kLossy; }
  bool has_space_prefix() const override { return true; }

 private:
  template <typename OnWord>
  void walk_words(std::string_view text, size_t offset, OnWord on_word) const;
  template <typename OnPart>
  void normalize(uint32_t code_point, OnPart on_part) const;
  void find_pieces(const Word& word, std::vector<EncodedToken>& out) const;

  BertRules rules_;
  const UnicodeTable& unicode_ = UnicodeTable::get();
};

// Calls on_part(code point) for what becomes of a character: decomposed without its accents, in
// lower case.
template <typename OnPart>
void WordPieceTokenizer::normalize(uint32_t code_point, OnPart on_part) const {
  utf8proc_int32_t parts[32] = {static_cast<utf8proc_int32_t>(code_point)};
  utf8proc_ssize_t n = 1;
  if (rules_.strip_accents && code_point >= 0x80) {
    int boundary = 0;
    n = utf8proc_decompose_char(parts[0], parts, 32, UTF8PROC_DECOMPOSE, &boundary);
    n = std::clamp<utf8proc_ssize_t>(n, 0, 32);
  }
  for (utf8proc_ssize_t i = 0; i < n; ++i) {
    const uint32_t part = static_cast<uint32_t>(parts[i]);
    if (rules_.strip_accents && (unicode_.flags(part) & kBertAccent)) continue;
    on_part(rules_.lowercase ? static_cast<uint32_t>(utf8proc_tolower(parts[i])) : part);
    if (rules_.lowercase && part == 0x130) on_part(0x307);  // the one letter that becomes two
  }
}

// Calls on_word(word) for each word: letters up to white space; punctuation and Chinese characters
// are words of their own. Control characters are left out.
template <typename OnWord>
void WordPieceTokenizer::walk_words(std::string_view text, size_t offset, OnWord on_word) const {
  Word word;
  word.clear();
  const auto end_word = [&] {
    if (!word.empty()) on_word(word);
    word.clear();
  };
  size_t length = 1;
  for (size_t pos = 0; pos < text.size(); pos += length) {
    const int32_t code = utf8_decode(text, pos, length);
    const size_t begin = offset + pos, end = begin + length;
    if (code < 0) {  // part of a word that no token holds
      word.add_byte(text[pos], begin);
      continue;
    }
    const uint32_t c = static_cast<uint32_t>(code);
    const unsigned flags = unicode_.flags(c);
    if (flags & kBertSpace) {
      end_word();
    } else if (!(flags & kBertRemoved)) {
      if (is_cjk(c)) end_word();
      normalize(c, [&](uint32_t part) {
        const bool alone = unicode_.flags(part) & kBertPunctuation;
        if (alone) end_word();
        word.add(part, begin, end);
        if (alone) end_word();
      });
      if (is_cjk(c)) end_word();
    }
  }
  end_word();
}

// The longest token at the beginning, then the longest that goes on, …; if that ends before the
// word does, the word is unknown.
void WordPieceTokenizer::find_pieces(const Word& word, std::vector<EncodedToken>& out) const {
  const std::string_view text = word.text;
  const size_t before = out.size();
  size_t begin = 0;
  while (begin < text.size() && word.characters <= kMaxCharacters) {
    size_t end = std::min(text.size(), begin + vocabulary().longest_text());
    int32_t id = -1;
    for (; end > begin; --end) {
      if (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) continue;
      if ((id = vocabulary().find_text(text.substr(begin, end - begin))) >= 0) break;
    }
    if (id < 0) break;
    out.push_back({id, word.origin[begin].first, word.origin[end - 1].second});
    begin = end;
  }
  if (begin == text.size()) return;
  out.resize(before);
  out.push_back({special_ids().unknown, word.origin.front().first, word.origin.back().second});
}

Result<std::vector<EncodedToken>> WordPieceTokenizer::encode(std::span<const Segment> segments,
                                                             const EncodeOptions& options) const {
  const JoinedText joined(segments);
  CUTAWAY_SPAN(span, "text::Tokenizer::encode", "text", joined.text, "segments", segments.size(),
               "add_special", options.add_special);
  std::vector<EncodedToken> out;
  add_first(out, options);
  CUTAWAY_TRY(walk(
      joined,
      [&](std::string_view text, size_t offset) -> Status {
        walk_words(text, offset, [&](const Word& word) { find_pieces(word, out); });
        return {};
      },
      [&](const SpecialMatch& match) { out.push_back({match.id, match.begin, match.end}); }));
  add_last(out, options, joined.text.size());
  CUTAWAY_OUT(span, "n", out.size());
  return out;
}

Result<std::vector<TracedWord>> WordPieceTokenizer::trace_merges(
    std::span<const Segment> segments) const {
  const JoinedText joined(segments);
  CUTAWAY_SPAN(span, "text::Tokenizer::trace_merges", "text", joined.text);
  std::vector<TracedWord> words;
  std::vector<EncodedToken> tokens;
  CUTAWAY_TRY(walk(
      joined,
      [&](std::string_view text, size_t offset) -> Status {
        walk_words(text, offset, [&](const Word& word) {
          tokens.clear();
          find_pieces(word, tokens);
          words.push_back(traced_word(tokens));
        });
        return {};
      },
      [&](const SpecialMatch& match) {
        words.push_back({match.begin, match.end, {}, {match.id}});
      }));
  CUTAWAY_OUT(span, "words", words.size());
  return words;
}

Result<std::shared_ptr<const Tokenizer>> WordPieceTokenizer::create(const Metadata& metadata) {
  SpecialDefaults defaults{
      .bos = 101, .eos = 102, .unknown = 100, .add_bos = true, .add_eos = true};
  CUTAWAY_ASSIGN(const int64_t cls,
                 metadata.integer_or("tokenizer.ggml.cls_token_id", defaults.bos, 0, INT32_MAX));
  CUTAWAY_ASSIGN(const int64_t sep, metadata.integer_or("tokenizer.ggml.seperator_token_id",
                                                        defaults.eos, 0, INT32_MAX));
  defaults.bos = static_cast<int32_t>(cls);
  defaults.eos = static_cast<int32_t>(sep);
  BertRules rules;
  CUTAWAY_ASSIGN(rules.lowercase, metadata.boolean_or("tokenizer.ggml.normalizer.lowercase", true));
  CUTAWAY_ASSIGN(rules.strip_accents,
                 metadata.boolean_or("tokenizer.ggml.normalizer.strip_accents", rules.lowercase));
  CUTAWAY_ASSIGN(Parts parts, Parts::read(metadata, "bert", Spelling::kSentencePiece, defaults));
  if (parts.ids.unknown < 0) {
    return Error{ErrorCode::kInvalidFile,
                 "tokenizer.ggml.model is bert, but there is no tokenizer.ggml.unknown_token_id: "
                 "words that no tokens make would have none",
                 "tokenizer.ggml.unknown_token_id"};
  }
  return std::shared_ptr<const Tokenizer>(
      std::make_shared<WordPieceTokenizer>(std::move(parts), rules));
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> create_wordpiece(const Metadata& metadata) {
  CUTAWAY_SPAN(span, "text::create_wordpiece");
  return WordPieceTokenizer::create(metadata);
}

}  // namespace cutaway::text
