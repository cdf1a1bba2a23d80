#include <fmt/format.h>

#include <array>

#include "text/tokenizer/bpe_merges.h"
#include "text/tokenizer/nfc.h"
#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/spaces.h"
#include "text/tokenizer/vocabulary_tokenizer.h"
#include "trace/trace.h"

namespace cutaway::text {
namespace {

// Where the bytes of a word are in the input: a shift, or a look-up where the text was rewritten.
struct WordOrigin {
  const AlignedText* aligned;  // null: the text is the input
  size_t offset;               // of the text in the input
  size_t word;                 // of the word in the text
  size_t begin(size_t pos) const {
    return offset + (aligned ? aligned->input_begin(word + pos) : word + pos);
  }
  size_t end(size_t pos) const {
    return offset + (aligned ? aligned->input_end(word + pos) : word + pos);
  }
};

Error no_byte(const Error& error, const WordOrigin& origin, size_t byte) {
  return {error.code,
          fmt::format("{}: it is at byte {} of the text", error.message, origin.begin(byte)),
          "text"};
}

// Bytes or characters, merged two by two.
class BpeTokenizer final : public VocabularyTokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> create(const Metadata& metadata,
                                                         const std::string& model);

  BpeTokenizer(Parts parts, Bpe bpe, const PreTokenizer* pre,
               std::shared_ptr<const Characters> characters, SpaceRules spaces)
      : VocabularyTokenizer(std::move(parts)),
        bpe_(std::move(bpe)),
        pre_(pre),
        characters_(std::move(characters)),
        spaces_(spaces) {}

  Result<std::vector<EncodedToken>> encode(std::span<const Segment> segments,
                                           const EncodeOptions& options) const override;
  Result<std::vector<TracedWord>> trace_merges(std::span<const Segment> segments) const override;
  std::string_view pre_tokenizer_name() const override { return pre_ ? pre_->name : ""; }
  Normalization normalization() const override {
    if (!pre_) return spaces_.remove_extra ? Normalization::kLossy : Normalization::kSpaces;
    return pre_->nfc ? Normalization::kNfc : Normalization::kNone;
  }
  bool has_space_prefix() const override { return spaces_.add_prefix; }

 private:
  // Calls on_word(word, origin, together, its number there) for each pre-token of a text without
  // special tokens. Without `operations`, or SentencePiece's, together is null: no words are merged
  // side by side.
  template <typename OnWord>
  Status walk_words(std::string_view text, size_t offset, uint64_t* operations,
                    OnWord on_word) const {
    if (!pre_) {
      const SpacedText spaced(text, spaces_);
      const std::string_view all = spaced.text();
      for (size_t pos = 0; pos < all.size();) {
        const size_t end = characters_->next_cut(all, pos);
        CUTAWAY_TRY(on_word(all.substr(pos, end - pos),
                            WordOrigin{spaced.changed() ? &spaced : nullptr, offset, pos}, nullptr,
                            0));
        pos = end;
      }
      return {};
    }
    const auto cut = [&](std::string_view part, const AlignedText* aligned) -> Status {
      // A few words wait until what they are looked up in has come from memory.
      std::array<Bpe::Waiting, Bpe::kTogether> waiting;
      Bpe::Together together;
      size_t n = 0;
      const auto flush = [&]() -> Status {
        bpe_.prefetch_rest(std::span(waiting.data(), n));
        if (operations) {
          bpe_.merge_together(std::span(waiting.data(), n), together, *operations);
        }
        for (size_t i = 0; i < n; ++i) {
          const size_t pos = static_cast<size_t>(waiting[i].word.data() - part.data());
          CUTAWAY_TRY(on_word(waiting[i].word, WordOrigin{aligned, offset, pos},
                              operations ? &together : nullptr, i));
        }
        n = 0;
        return {};
      };
      CUTAWAY_TRY(pre_->for_each_word(unicode_, part, [&](std::string_view word) -> Status {
        waiting[n++] = bpe_.prefetch(word);
        return n < waiting.size() ? Status() : flush();
      }));
      return flush();
    };
    if (!pre_->nfc) return cut(text, nullptr);
    const NfcText nfc(unicode_, text);
    return cut(nfc.text(), nfc.changed() ? &nfc : nullptr);
  }

  Bpe bpe_;
  const PreTokenizer* pre_;                       // null: SentencePiece's
  std::shared_ptr<const Characters> characters_;  // then there
  SpaceRules spaces_;
  const UnicodeTable& unicode_ = UnicodeTable::get();
};

Result<std::vector<EncodedToken>> BpeTokenizer::encode(std::span<const Segment> segments,
                                                       const EncodeOptions& options) const {
  const JoinedText joined(segments);
  CUTAWAY_SPAN(span, "text::Tokenizer::encode", "text", joined.text, "segments", segments.size(),
               "add_special", options.add_special);
  std::vector<EncodedToken> out;
  out.reserve(joined.text.size() / 4 + 8);
  Bpe::Scratch scratch;
  add_first(out, options);
  size_t first = 0;  // where the tokens of the text begin
  const auto add_parts = [&](std::span<const Part> parts, const WordOrigin& origin) {
    size_t begin = 0;
    for (const Part& part : parts) {
      add_token(out, first, part.id, origin.begin(begin), origin.end(part.end));
      begin = part.end;
    }
  };
  const auto on_word = [&](std::string_view word, const WordOrigin& origin,
                           const Bpe::Together* together, size_t i) -> Status {
    const Bpe::Whole whole = together ? together->whole[i] : bpe_.find_whole(word);
    if (whole.taken) {
      add_token(out, first, whole.id, origin.begin(0), origin.end(word.size()));
      return {};
    }
    if (together && together->count[i] > 0) {
      add_parts(std::span(together->parts[i].data(), together->count[i]), origin);
      return {};
    }
    size_t bad_byte = 0;
    auto parts = bpe_.merge(word, whole, options.drop_unencodable, scratch, nullptr, bad_byte);
    if (!parts) return no_byte(parts.error(), origin, bad_byte);
    add_parts(**parts, origin);
    return {};
  };
  CUTAWAY_TRY(walk(
      joined,
      [&](std::string_view text, size_t offset) {
        first = out.size();
        return walk_words(text, offset, &scratch.operations, on_word);
      },
      [&](const SpecialMatch& match) { out.push_back({match.id, match.begin, match.end}); }));
  add_last(out, options, joined.text.size());
  if (span.active()) {
    std::vector<int32_t> ids;
    ids.reserve(out.size());
    for (const EncodedToken& token : out) ids.push_back(token.id);
    CUTAWAY_OUT(span, "ids", ids, "n", ids.size(), "operations", scratch.operations);
  }
  return out;
}

Result<std::vector<TracedWord>> BpeTokenizer::trace_merges(
    std::span<const Segment> segments) const {
  const JoinedText joined(segments);
  CUTAWAY_SPAN(span, "text::Tokenizer::trace_merges", "text", joined.text);
  std::vector<TracedWord> words;
  Bpe::Scratch scratch;
  std::vector<MadeMerge> made;
  size_t first = 0;  // where the words of the text begin
  const auto on_word = [&](std::string_view word, const WordOrigin& origin, const Bpe::Together*,
                           size_t) -> Status {
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
    add_word(words, first, std::move(traced));
    return {};
  };
  CUTAWAY_TRY(walk(
      joined,
      [&](std::string_view text, size_t offset) {
        first = words.size();
        return walk_words(text, offset, nullptr, on_word);
      },
      [&](const SpecialMatch& match) {
        words.push_back({match.begin, match.end, {}, {match.id}});
      }));
  CUTAWAY_OUT(span, "words", words.size());
  return words;
}

Result<std::shared_ptr<const Tokenizer>> BpeTokenizer::create(const Metadata& metadata,
                                                              const std::string& model) {
  const PreTokenizer* pre = nullptr;
  SpaceRules spaces;
  SpecialDefaults defaults;
  if (model == "gpt2") {
    CUTAWAY_ASSIGN(const std::string name, metadata.string_or("tokenizer.ggml.pre", ""));
    CUTAWAY_ASSIGN(pre, find_pre_tokenizer(name));
    defaults.add_bos = pre->add_bos;
  } else {
    const bool scores = model == "llama";
    CUTAWAY_ASSIGN(spaces, SpaceRules::read(metadata, {.add_prefix = scores}));
    if (scores) defaults = {.bos = 1, .eos = 2, .unknown = 0};
    defaults.add_bos = true;
  }
  const Spelling spelling = pre ? Spelling::kByteLevel : Spelling::kSentencePiece;
  CUTAWAY_ASSIGN(Parts parts, Parts::read(metadata, model, spelling, defaults));
  std::shared_ptr<const Characters> characters;
  if (!pre) characters = std::make_shared<const Characters>(*parts.vocabulary);
  CUTAWAY_ASSIGN(MergeTable merges,
                 model == "llama"
                     ? MergeTable::from_scores(metadata, *parts.vocabulary, *characters)
                     : MergeTable::read(metadata, *parts.vocabulary));
  Bpe bpe(parts.vocabulary, std::move(merges), pre && pre->ignore_merges, characters,
          pre ? -1 : parts.ids.unknown);
  return std::shared_ptr<const Tokenizer>(std::make_shared<BpeTokenizer>(
      std::move(parts), std::move(bpe), pre, std::move(characters), spaces));
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> create_bpe(const Metadata& metadata,
                                                    const std::string& model) {
  CUTAWAY_SPAN(span, "text::create_bpe", "model", model);
  return BpeTokenizer::create(metadata, model);
}

}  // namespace cutaway::text
