#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/utf8.h"
#include "text/tokenizer/charsmap.h"
#include "text/tokenizer/spaces.h"
#include "text/tokenizer/token_trie.h"
#include "text/tokenizer/vocabulary_tokenizer.h"
#include "trace/trace.h"

namespace cutaway::text {
namespace {

constexpr const char* kScores = "tokenizer.ggml.scores";
constexpr double kUnknownPenalty = 10;  // below the lowest score, as in SentencePiece
constexpr size_t kLongestToken = 1024;  // bytes; bounds the work at each place of a text

// The best way to spell a text up to a place.
struct Step {
  double score;
  size_t begin;  // where its last token begins
  int32_t id;    // that token; −1: the character has none
};

// Spells a text with the tokens whose scores (log probabilities) have the greatest sum.
class UnigramTokenizer final : public VocabularyTokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> create(const Metadata& metadata);

  UnigramTokenizer(Parts parts, std::vector<double> scores, CharacterMap map, SpaceRules spaces)
      : VocabularyTokenizer(std::move(parts)),
        trie_(vocabulary()),
        scores_(std::move(scores)),
        map_(std::move(map)),
        spaces_(spaces) {
    for (int32_t id = 0; id < vocab_size(); ++id) {
      if (!vocabulary().is_text(id)) continue;
      if (token_type(id) == TokenType::kNormal) {
        unknown_score_ = std::min(unknown_score_, scores_[static_cast<size_t>(id)]);
      }
      spaces_inside_ |= vocabulary().bytes(id).find(' ', 1) != std::string_view::npos;
    }
    unknown_score_ -= kUnknownPenalty;
  }

  Result<std::vector<EncodedToken>> encode(std::span<const Segment> segments,
                                           const EncodeOptions& options) const override;
  Result<std::vector<TracedWord>> trace_merges(std::span<const Segment> segments) const override;
  std::string_view pre_tokenizer_name() const override { return ""; }
  Normalization normalization() const override {
    return map_.empty() && !spaces_.remove_extra ? Normalization::kSpaces : Normalization::kLossy;
  }
  bool has_space_prefix() const override { return spaces_.add_prefix; }

 private:
  // Calls on_word(tokens) for each part of a text that is spelled by itself.
  template <typename OnWord>
  Status walk_words(std::string_view text, size_t offset, bool drop, OnWord on_word) const;
  void find_best(std::string_view word, std::vector<Step>& steps) const;
  template <typename Origin>
  Status spell_out(std::string_view text, const Origin& origin, bool drop,
                   std::vector<EncodedToken>& out) const;

  TokenTrie trie_;
  std::vector<double> scores_;
  CharacterMap map_;
  SpaceRules spaces_;
  double unknown_score_ = 0;
  bool spaces_inside_ = false;  // of tokens: then words cannot be spelled one by one
};

// Fills `steps` with the tokens of a word, from its end to its beginning.
void UnigramTokenizer::find_best(std::string_view word, std::vector<Step>& steps) const {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  steps.assign(word.size() + 1, Step{kNone, 0, -1});
  steps[0].score = 0;
  size_t length = 1;
  for (size_t pos = 0; pos < word.size(); pos += length) {
    utf8_decode(word, pos, length);
    const double score = steps[pos].score;
    bool spelled = false;
    const auto offer = [&](int32_t id, size_t end, double token_score) {
      if (score + token_score > steps[end].score) steps[end] = {score + token_score, pos, id};
    };
    trie_.find(word, pos, [&](int32_t id, size_t end) {
      offer(id, end, scores_[static_cast<size_t>(id)]);
      spelled |= end == pos + length;
    });
    if (!spelled) offer(-1, pos + length, unknown_score_);
  }
}

// Appends a character that has no token: its bytes' tokens, or the unknown one.
template <typename Origin>
Status UnigramTokenizer::spell_out(std::string_view text, const Origin& origin, bool drop,
                                   std::vector<EncodedToken>& out) const {
  const auto byte_token = [&](char c) { return vocabulary().byte_token(static_cast<uint8_t>(c)); };
  if (std::all_of(text.begin(), text.end(), [&](char c) { return byte_token(c) >= 0; })) {
    for (size_t i = 0; i < text.size(); ++i) {
      out.push_back({byte_token(text[i]), origin.begin(i), origin.end(i + 1)});
    }
  } else if (special_ids().unknown >= 0) {
    add_token(out, 0, special_ids().unknown, origin.begin(0), origin.end(text.size()));
  } else if (!drop) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("byte 0x{:02X} has no token in this vocabulary: it is at byte {} of "
                             "the text",
                             static_cast<uint8_t>(text[0]), origin.begin(0)),
                 "text"};
  }
  return {};
}

template <typename OnWord>
Status UnigramTokenizer::walk_words(std::string_view text, size_t offset, bool drop,
                                    OnWord on_word) const {
  const MappedText mapped(text, map_);
  const SpacedText spaced(mapped.text(), spaces_);
  const std::string_view all = spaced.text();
  struct Origin {
    const MappedText& mapped;
    const SpacedText& spaced;
    size_t offset, word;
    size_t begin(size_t pos) const {
      return offset + mapped.input_begin(spaced.input_begin(word + pos));
    }
    size_t end(size_t pos) const { return offset + mapped.input_end(spaced.input_end(word + pos)); }
  };
  std::vector<Step> steps;
  std::vector<EncodedToken> tokens;
  std::vector<size_t> ends;
  for (size_t pos = 0, end = 0; pos < all.size(); pos = end) {
    end = spaces_inside_ ? all.size() : std::min(all.find(' ', pos + 1), all.size());
    const std::string_view word = all.substr(pos, end - pos);
    find_best(word, steps);
    ends.clear();
    for (size_t at = word.size(); at > 0; at = steps[at].begin) ends.push_back(at);
    tokens.clear();
    for (size_t i = ends.size(); i-- > 0;) {
      const Step& step = steps[ends[i]];
      const Origin origin{mapped, spaced, offset, pos + step.begin};
      const size_t size = ends[i] - step.begin;
      if (step.id >= 0) {
        tokens.push_back({step.id, origin.begin(0), origin.end(size)});
      } else {
        CUTAWAY_TRY(spell_out(word.substr(step.begin, size), origin, drop, tokens));
      }
    }
    on_word(tokens);
  }
  return {};
}

Result<std::vector<EncodedToken>> UnigramTokenizer::encode(std::span<const Segment> segments,
                                                           const EncodeOptions& options) const {
  const JoinedText joined(segments);
  CUTAWAY_SPAN(span, "text::Tokenizer::encode", "text", joined.text, "segments", segments.size(),
               "add_special", options.add_special);
  std::vector<EncodedToken> out;
  add_first(out, options);
  CUTAWAY_TRY(walk(
      joined,
      [&](std::string_view text, size_t offset) {
        const size_t first = out.size();
        return walk_words(text, offset, options.drop_unencodable,
                          [&](const std::vector<EncodedToken>& tokens) {
                            for (const EncodedToken& t : tokens) {
                              add_token(out, first, t.id, t.begin, t.end);
                            }
                          });
      },
      [&](const SpecialMatch& match) { out.push_back({match.id, match.begin, match.end}); }));
  add_last(out, options, joined.text.size());
  CUTAWAY_OUT(span, "n", out.size());
  return out;
}

Result<std::vector<TracedWord>> UnigramTokenizer::trace_merges(
    std::span<const Segment> segments) const {
  const JoinedText joined(segments);
  CUTAWAY_SPAN(span, "text::Tokenizer::trace_merges", "text", joined.text);
  std::vector<TracedWord> words;
  CUTAWAY_TRY(walk(
      joined,
      [&](std::string_view text, size_t offset) {
        const size_t first = words.size();
        return walk_words(text, offset, false, [&](const std::vector<EncodedToken>& tokens) {
          if (!tokens.empty()) add_word(words, first, traced_word(tokens));
        });
      },
      [&](const SpecialMatch& match) {
        words.push_back({match.begin, match.end, {}, {match.id}});
      }));
  CUTAWAY_OUT(span, "words", words.size());
  return words;
}

Result<std::shared_ptr<const Tokenizer>> UnigramTokenizer::create(const Metadata& metadata) {
  const SpecialDefaults defaults{.eos = 1, .unknown = 2, .add_eos = true};
  CUTAWAY_ASSIGN(Parts parts, Parts::read(metadata, "t5", Spelling::kSentencePiece, defaults));
  if (parts.vocabulary->longest_text() > kLongestToken) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("tokenizer.ggml.tokens has a token of {} bytes; at most {} are "
                             "supported with tokenizer.ggml.model t5",
                             parts.vocabulary->longest_text(), kLongestToken),
                 "tokenizer.ggml.tokens"};
  }
  CUTAWAY_ASSIGN(std::vector<double> scores,
                 read_scores(metadata, static_cast<size_t>(parts.vocabulary->size())));
  CUTAWAY_ASSIGN(CharacterMap map, CharacterMap::read(metadata));
  CUTAWAY_ASSIGN(const SpaceRules spaces,
                 SpaceRules::read(metadata, {.add_prefix = true, .remove_extra = false}));
  return std::shared_ptr<const Tokenizer>(std::make_shared<UnigramTokenizer>(
      std::move(parts), std::move(scores), std::move(map), spaces));
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> create_unigram(const Metadata& metadata) {
  CUTAWAY_SPAN(span, "text::create_unigram");
  return UnigramTokenizer::create(metadata);
}

}  // namespace cutaway::text
