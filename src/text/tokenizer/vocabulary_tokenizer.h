// What every kind of tokenizer has: a vocabulary, the tokens found as whole spellings, and the ids
// with a meaning. The kinds differ in what they do with the text between those tokens.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer/joined_text.h"
#include "text/tokenizer/special_matcher.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary.h"

namespace cutaway::text {

// What holds where the file says nothing; an id past the vocabulary's end counts as none.
struct SpecialDefaults {
  int32_t bos = -1, eos = -1, unknown = -1;
  bool add_bos = false, add_eos = false;
};

// Errors name the key.
Result<Tokenizer::SpecialIds> read_special_ids(const Metadata& metadata, int32_t vocab_size,
                                               const SpecialDefaults& defaults);
std::vector<int32_t> find_end_ids(const Tokenizer::SpecialIds& ids, const Vocabulary& vocabulary);

// tokenizer.ggml.model = "gpt2" (byte-level BPE), "llama" (SentencePiece's BPE), "gemma4" (merges
// over SentencePiece's spelling).
Result<std::shared_ptr<const Tokenizer>> create_bpe(const Metadata& metadata,
                                                    const std::string& model);

// "bert" (WordPiece) and "t5" (Unigram).
Result<std::shared_ptr<const Tokenizer>> create_wordpiece(const Metadata& metadata);
Result<std::shared_ptr<const Tokenizer>> create_unigram(const Metadata& metadata);

class VocabularyTokenizer : public Tokenizer {
 public:
  std::string_view token_bytes(int32_t id, bool special) const override {
    const TokenType type = vocabulary_->type(id);
    const bool hidden = type == TokenType::kControl || type == TokenType::kUnknown;
    return hidden && !special ? std::string_view() : vocabulary_->bytes(id);
  }
  int32_t vocab_size() const override { return vocabulary_->size(); }
  TokenType token_type(int32_t id) const override { return vocabulary_->type(id); }
  int32_t find_special(std::string_view spelling) const override {
    return vocabulary_->find_special(spelling);
  }
  const SpecialIds& special_ids() const override { return ids_; }
  const std::vector<int32_t>& end_ids() const override { return end_ids_; }
  std::string_view model_name() const override { return model_; }

 protected:
  struct Parts {
    std::string model;
    std::shared_ptr<const Vocabulary> vocabulary;
    SpecialMatcher specials;
    SpecialIds ids;

    // Of a file. Errors name the key.
    static Result<Parts> read(const Metadata& metadata, const std::string& model, Spelling spelling,
                              const SpecialDefaults& defaults);
  };
  explicit VocabularyTokenizer(Parts parts)
      : model_(std::move(parts.model)),
        vocabulary_(std::move(parts.vocabulary)),
        specials_(std::move(parts.specials)),
        ids_(parts.ids),
        end_ids_(find_end_ids(ids_, *vocabulary_)) {}

  // Calls on_text(text, its place in the input) for each text between special tokens, unless it is
  // empty, and on_special(match) for each of them, in order, until one of the former is an error.
  template <typename OnText, typename OnSpecial>
  Status walk(const JoinedText& joined, OnText on_text, OnSpecial on_special) const {
    size_t pos = 0;
    const auto text_until = [&](size_t end) -> Status {
      if (end == pos) return {};
      return on_text(joined.text.substr(pos, end - pos), pos);
    };
    for (const SpecialMatch& match : specials_.find(joined.text, joined.runs)) {
      CUTAWAY_TRY(text_until(match.begin));
      on_special(match);
      pos = match.end;
    }
    return text_until(joined.text.size());
  }
  // A word of tokens that no merges made. Precondition: there is one.
  static TracedWord traced_word(const std::vector<EncodedToken>& tokens) {
    TracedWord word{tokens.front().begin, tokens.back().end, {}, {}};
    for (const EncodedToken& token : tokens) word.ids.push_back(token.id);
    return word;
  }
  // BOS and EOS as the file says.
  void add_first(std::vector<EncodedToken>& out, const EncodeOptions& options) const {
    if (options.add_special && ids_.add_bos) out.push_back({ids_.bos, 0, 0});
  }
  void add_last(std::vector<EncodedToken>& out, const EncodeOptions& options, size_t size) const {
    if (options.add_special && ids_.add_eos) out.push_back({ids_.eos, size, size});
  }
  // Appends a token of a text whose tokens begin at out[first]: unknown tokens side by side are
  // one.
  void add_token(std::vector<EncodedToken>& out, size_t first, int32_t id, size_t begin,
                 size_t end) const {
    if (is_unknown(id) && out.size() > first && out.back().id == id) {
      out.back().end = std::max(out.back().end, end);
    } else {
      out.push_back({id, begin, end});
    }
  }
  // The unknown token, unless the file gives its id to one that text or a byte may become.
  bool is_unknown(int32_t id) const {
    return id == ids_.unknown && !vocabulary_->is_text(id) && token_type(id) != TokenType::kByte;
  }
  // Appends a word as add_token appends its tokens.
  void add_word(std::vector<TracedWord>& words, size_t first, TracedWord word) const {
    if (word.ids.empty()) return;
    if (words.size() > first && is_unknown(word.ids[0]) && words.back().ids.back() == word.ids[0]) {
      words.back().end = std::max(words.back().end, word.end);
      word.ids.erase(word.ids.begin());
    }
    if (!word.ids.empty()) words.push_back(std::move(word));
  }
  const Vocabulary& vocabulary() const { return *vocabulary_; }

 private:
  std::string model_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  SpecialMatcher specials_;
  SpecialIds ids_;
  std::vector<int32_t> end_ids_;
};

}  // namespace cutaway::text
