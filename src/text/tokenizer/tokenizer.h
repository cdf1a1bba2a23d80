// Text ↔ token ids. Built from a model file's metadata; immutable and safe to share.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/model_file.h"

namespace cutaway::text {

// A piece of input text and how far it is to be trusted (TRAPS: text that spells a control token
// must not become one). A chat template renders to segments; a raw prompt is one.
struct Segment {
  std::string text;
  // true: control tokens spelled in it are those tokens (a template's own text, --special).
  // false: they are encoded as ordinary text. User-defined added tokens match in both.
  bool parse_special = false;
};

enum class TokenType : uint8_t { kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };

// What encoding did, for `tokenize --merges`.
struct MergeStep {
  int32_t rank;             // priority in the file's merge list: lower merges first
  std::string left, right;  // bytes of the two parts
  size_t begin, end;        // byte range in the input of the merged part
};
struct TracedWord {
  size_t begin, end;              // byte range of the pre-token in the input
  std::vector<MergeStep> merges;  // in the order in which they were made
  std::vector<int32_t> ids;
};

struct EncodedToken {
  int32_t id;
  size_t begin, end;  // byte range in the concatenated input; a BOS that was added has begin == end
};

struct EncodeOptions {
  bool add_special = true;  // BOS / EOS as the file says
  // Some vocabularies lack single bytes (SmolLM2's: 21 of them). false: text with such a byte is an
  // error. true: the byte is left out, as Hugging Face `tokenizers` does without a word.
  bool drop_unencodable = false;
};

class Tokenizer {
 public:
  // Errors name the metadata key: unknown model or pre-tokenizer, vocabulary and merges that do not
  // fit together, ids out of range.
  static Result<std::shared_ptr<const Tokenizer>> create(const Metadata& metadata);
  virtual ~Tokenizer() = default;

  // Any bytes can be encoded (invalid UTF-8 through byte tokens), and decode gives them back; where
  // the model normalises (qwen2: NFC), it gives the normalised text. Error kInvalidArgument: a byte
  // that the vocabulary has no token for, with its place. Near-linear in the size of the text, a
  // run without spaces included.
  virtual Result<std::vector<EncodedToken>> encode(std::span<const Segment> segments,
                                                   const EncodeOptions& options) const = 0;
  Result<std::vector<int32_t>> encode_ids(std::string_view text, bool parse_special,
                                          bool add_special) const;

  // Every pre-token with its merges in order. Same ids as encode().
  virtual Result<std::vector<TracedWord>> trace_merges(std::span<const Segment> segments) const = 0;

  // The bytes of one token. Control tokens give their spelling when `special`, else nothing.
  // Precondition: 0 <= id < vocab_size().
  virtual std::string_view token_bytes(int32_t id, bool special) const = 0;
  // Where encode() puts a space in front of every text, decode() takes one off its own beginning.
  std::string decode(std::span<const int32_t> ids, bool special) const;

  // What a person is shown: the bytes, invalid UTF-8 as U+FFFD; control tokens by their spelling.
  std::string piece(int32_t id) const;

  virtual int32_t vocab_size() const = 0;
  virtual TokenType token_type(int32_t id) const = 0;
  // −1 when there is none with exactly this spelling (as the vocabulary writes it, for control and
  // user-defined tokens).
  virtual int32_t find_special(std::string_view spelling) const = 0;

  struct SpecialIds {
    int32_t bos = -1, eos = -1, eot = -1, eom = -1, unknown = -1, padding = -1;
    bool add_bos = false, add_eos = false;
  };
  virtual const SpecialIds& special_ids() const = 0;
  // Ids that end a generation: EOS, EOT, EOM of the file, and the known turn-end spellings that the
  // file's list may lack (TRAPS). Sorted.
  virtual const std::vector<int32_t>& end_ids() const = 0;

  // tokenizer.ggml.model: "gpt2" (byte-level BPE), "llama" (SentencePiece's BPE), "gemma4" (merges
  // over characters), "bert" (WordPiece) or "t5" (Unigram).
  virtual std::string_view model_name() const = 0;
  virtual std::string_view pre_tokenizer_name() const = 0;  // "smollm", "qwen2", … of "gpt2"

  // What may change between a text without special tokens and decode(encode(text)).
  enum class Normalization {
    kNone,
    kNfc,     // valid UTF-8 becomes NFC
    kSpaces,  // SentencePiece's sign for a space, U+2581, becomes a space; see docs/tokenizers.md
    kLossy,   // case, accents, white space, characters without a token: BERT, and where the file's
              // character map or remove_extra_whitespaces says so
  };
  virtual Normalization normalization() const = 0;
  virtual bool has_space_prefix() const = 0;  // see decode()
};

}  // namespace cutaway::text
