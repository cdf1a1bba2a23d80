#include <fmt/format.h>

#include "text/tokenizer/byte_bpe_tokenizer.h"
#include "text/tokenizer/nfc.h"
#include "trace/trace.h"

namespace cutaway::text {
namespace {

// The segments as one text, and which parts of it are trusted.
struct JoinedText {
  std::string storage;  // used when there is more than one segment
  std::string_view text;
  std::vector<SpecialMatcher::Run> runs;

  explicit JoinedText(std::span<const Segment> segments) {
    if (segments.size() == 1) {
      text = segments[0].text;
    } else {
      for (const Segment& segment : segments) storage += segment.text;
      text = storage;
    }
    size_t end = 0;
    for (const Segment& segment : segments) {
      if (segment.text.empty()) continue;
      end += segment.text.size();
      if (!runs.empty() && runs.back().trusted == segment.parse_special) {
        runs.back().end = end;
      } else {
        runs.push_back({end, segment.parse_special});
      }
    }
  }
  JoinedText(const JoinedText&) = delete;
  JoinedText& operator=(const JoinedText&) = delete;
};

class ByteBpeTokenizer final : public Tokenizer {
 public:
  ByteBpeTokenizer(std::shared_ptr<const Vocabulary> vocabulary, MergeTable merges,
                   SpecialMatcher specials, const PreTokenizer* pre, const SpecialIds& ids)
      : vocabulary_(vocabulary),
        bpe_(vocabulary, std::move(merges), pre->ignore_merges),
        specials_(std::move(specials)),
        pre_(pre),
        ids_(ids),
        end_ids_(find_end_ids(ids, *vocabulary)) {}

  Result<std::vector<EncodedToken>> encode(std::span<const Segment> segments,
                                           const EncodeOptions& options) const override;
  Result<std::vector<TracedWord>> trace_merges(std::span<const Segment> segments) const override;

  std::string_view token_bytes(int32_t id, bool special) const override {
    if (!special && vocabulary_->type(id) == TokenType::kControl) return {};
    return vocabulary_->bytes(id);
  }
  int32_t vocab_size() const override { return vocabulary_->size(); }
  TokenType token_type(int32_t id) const override { return vocabulary_->type(id); }
  int32_t find_special(std::string_view spelling) const override {
    return vocabulary_->find_special(spelling);
  }
  const SpecialIds& special_ids() const override { return ids_; }
  const std::vector<int32_t>& end_ids() const override { return end_ids_; }
  std::string_view model_name() const override { return "gpt2"; }
  std::string_view pre_tokenizer_name() const override { return pre_->name; }

 private:
  template <typename OnWord, typename OnSpecial>
  Status walk(const JoinedText& joined, OnWord on_word, OnSpecial on_special) const;
  template <typename OnWord>
  Status walk_words(std::string_view text, size_t offset, OnWord on_word) const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  Bpe bpe_;
  SpecialMatcher specials_;
  const PreTokenizer* pre_;
  const UnicodeTable& unicode_ = UnicodeTable::get();
  SpecialIds ids_;
  std::vector<int32_t> end_ids_;
};

// Where the bytes of a word are in the input: a shift, or a look-up where NFC rewrote something.
struct WordOrigin {
  const NfcText* nfc;  // null: the text is the input
  size_t offset;       // of the text in the input
  size_t word;         // of the word in the text
  size_t begin(size_t pos) const {
    return offset + (nfc ? nfc->input_begin(word + pos) : word + pos);
  }
  size_t end(size_t pos) const { return offset + (nfc ? nfc->input_end(word + pos) : word + pos); }
};

Error no_byte(const Error& error, const WordOrigin& origin, size_t byte) {
  return {error.code,
          fmt::format("{}: it is at byte {} of the text", error.message, origin.begin(byte)),
          "text"};
}

// Calls on_word(word, origin) for each pre-token of a text without special tokens.
template <typename OnWord>
Status ByteBpeTokenizer::walk_words(std::string_view text, size_t offset, OnWord on_word) const {
  const auto cut = [&](std::string_view part, const NfcText* nfc) -> Status {
    return pre_->for_each_word(unicode_, part, [&](std::string_view word) -> Status {
      const size_t pos = static_cast<size_t>(word.data() - part.data());
      return on_word(word, WordOrigin{nfc, offset, pos});
    });
  };
  if (!pre_->nfc) return cut(text, nullptr);
  const NfcText nfc(unicode_, text);
  return cut(nfc.text(), nfc.changed() ? &nfc : nullptr);
}

template <typename OnWord, typename OnSpecial>
Status ByteBpeTokenizer::walk(const JoinedText& joined, OnWord on_word,
                              OnSpecial on_special) const {
  size_t pos = 0;
  for (const SpecialMatch& match : specials_.find(joined.text, joined.runs)) {
    CUTAWAY_TRY(walk_words(joined.text.substr(pos, match.begin - pos), pos, on_word));
    on_special(match);
    pos = match.end;
  }
  return walk_words(joined.text.substr(pos), pos, on_word);
}

Result<std::vector<EncodedToken>> ByteBpeTokenizer::encode(std::span<const Segment> segments,
                                                           const EncodeOptions& options) const {
  const JoinedText joined(segments);
  CUTAWAY_SPAN(span, "text::Tokenizer::encode", "text", joined.text, "segments", segments.size(),
               "add_special", options.add_special);
  std::vector<EncodedToken> out;
  out.reserve(joined.text.size() / 4 + 8);
  Bpe::Scratch scratch;
  if (options.add_special && ids_.add_bos) out.push_back({ids_.bos, 0, 0});
  CUTAWAY_TRY(walk(
      joined,
      [&](std::string_view word, const WordOrigin& origin) -> Status {
        size_t bad_byte = 0;
        auto parts = bpe_.encode(word, options.drop_unencodable, scratch, nullptr, bad_byte);
        if (!parts) return no_byte(parts.error(), origin, bad_byte);
        size_t begin = 0;
        for (const Part& part : **parts) {
          out.push_back({part.id, origin.begin(begin), origin.end(part.end)});
          begin = part.end;
        }
        return {};
      },
      [&](const SpecialMatch& match) { out.push_back({match.id, match.begin, match.end}); }));
  const size_t size = joined.text.size();
  if (options.add_special && ids_.add_eos) out.push_back({ids_.eos, size, size});
  if (span.active()) {
    std::vector<int32_t> ids;
    ids.reserve(out.size());
    for (const EncodedToken& token : out) ids.push_back(token.id);
    CUTAWAY_OUT(span, "ids", ids, "n", ids.size(), "operations", scratch.operations);
  }
  return out;
}

Result<std::vector<TracedWord>> ByteBpeTokenizer::trace_merges(
    std::span<const Segment> segments) const {
  const JoinedText joined(segments);
  CUTAWAY_SPAN(span, "text::Tokenizer::trace_merges", "text", joined.text);
  std::vector<TracedWord> words;
  Bpe::Scratch scratch;
  std::vector<MadeMerge> made;
  CUTAWAY_TRY(walk(
      joined,
      [&](std::string_view word, const WordOrigin& origin) -> Status {
        size_t bad_byte = 0;
        made.clear();
        auto parts = bpe_.encode(word, false, scratch, &made, bad_byte);
        if (!parts) return no_byte(parts.error(), origin, bad_byte);
        TracedWord traced{origin.begin(0), origin.end(word.size()), {}, {}};
        for (const MadeMerge& m : made) {
          traced.merges.push_back({static_cast<int32_t>(m.rank),
                                   std::string(word.substr(m.begin, m.middle - m.begin)),
                                   std::string(word.substr(m.middle, m.end - m.middle)),
                                   origin.begin(m.begin), origin.end(m.end)});
        }
        for (const Part& part : **parts) traced.ids.push_back(part.id);
        words.push_back(std::move(traced));
        return {};
      },
      [&](const SpecialMatch& match) {
        words.push_back({match.begin, match.end, {}, {match.id}});
      }));
  CUTAWAY_OUT(span, "words", words.size());
  return words;
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> create_byte_bpe(const Metadata& metadata) {
  CUTAWAY_SPAN(span, "text::create_byte_bpe");
  CUTAWAY_ASSIGN(const std::string pre_name, metadata.string_or("tokenizer.ggml.pre", ""));
  CUTAWAY_ASSIGN(const PreTokenizer* pre, find_pre_tokenizer(pre_name));
  CUTAWAY_ASSIGN(Vocabulary vocabulary, Vocabulary::read_byte_level(metadata));
  CUTAWAY_ASSIGN(MergeTable merges, MergeTable::read(metadata, vocabulary));
  CUTAWAY_ASSIGN(SpecialMatcher specials, SpecialMatcher::create(vocabulary));
  CUTAWAY_ASSIGN(const Tokenizer::SpecialIds ids,
                 read_special_ids(metadata, vocabulary.size(), pre->add_bos));
  return std::shared_ptr<const Tokenizer>(
      std::make_shared<ByteBpeTokenizer>(std::make_shared<const Vocabulary>(std::move(vocabulary)),
                                         std::move(merges), std::move(specials), pre, ids));
}

}  // namespace cutaway::text
