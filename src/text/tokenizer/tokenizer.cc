#include "text/tokenizer/tokenizer.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/tokenizer/vocabulary_tokenizer.h"
#include "trace/trace.h"

namespace cutaway::text {
namespace {

// Spellings that end a turn or a text in the chat formats that people run. A file names one or two
// of them; a model that was trained with more writes the others too, and without this list it would
// talk on after them (often as the user). Only control tokens with exactly these spellings count,
// so that a vocabulary in which one is ordinary text is not affected.
constexpr std::string_view kTurnEnds[] = {
    "<|im_end|>",                               // ChatML: Qwen, SmolLM, Yi, Hermes
    "<|endoftext|>",                            // end of document: GPT-2, Qwen, SmolLM, Phi
    "<|eot_id|>",                               // Llama 3: end of turn
    "<|eom_id|>",                               // Llama 3: end of message, a tool call follows
    "<|end_of_text|>",                          // Llama 3, Granite: end of document
    "<|eot|>",                                  // Llama 4
    "<|eom|>",                                  // Llama 4
    "<|end|>",                                  // Phi-3
    "<end_of_turn>",                            // Gemma
    "<turn|>",                                  // Gemma 4
    "</s>",                                     // Llama 2, Mistral
    "<|return|>",                               // gpt-oss: end of the answer
    "<|call|>",                                 // gpt-oss: a tool call is complete
    "<|endofturn|>",                            // EXAONE, HyperCLOVA
    "<|END_OF_TURN_TOKEN|>",                    // Command R
    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",  // DeepSeek
};

}  // namespace

Result<Tokenizer::SpecialIds> read_special_ids(const Metadata& metadata, int32_t vocab_size,
                                               const SpecialDefaults& defaults) {
  CUTAWAY_SPAN(span, "text::read_special_ids", "vocab_size", vocab_size);
  Tokenizer::SpecialIds ids;
  struct Field {
    const char* key;
    int32_t* id;
    int32_t fallback;
  };
  const Field fields[] = {{"tokenizer.ggml.bos_token_id", &ids.bos, defaults.bos},
                          {"tokenizer.ggml.eos_token_id", &ids.eos, defaults.eos},
                          {"tokenizer.ggml.eot_token_id", &ids.eot, -1},
                          {"tokenizer.ggml.eom_token_id", &ids.eom, -1},
                          {"tokenizer.ggml.unknown_token_id", &ids.unknown, defaults.unknown},
                          {"tokenizer.ggml.padding_token_id", &ids.padding, -1}};
  for (const Field& field : fields) {
    const int32_t fallback = field.fallback < vocab_size ? field.fallback : -1;
    CUTAWAY_ASSIGN(const int64_t id, metadata.integer_or(field.key, fallback, 0, vocab_size - 1));
    *field.id = static_cast<int32_t>(id);
  }
  CUTAWAY_ASSIGN(ids.add_bos, metadata.boolean_or("tokenizer.ggml.add_bos_token",
                                                  defaults.add_bos && ids.bos >= 0));
  CUTAWAY_ASSIGN(ids.add_eos, metadata.boolean_or("tokenizer.ggml.add_eos_token",
                                                  defaults.add_eos && ids.eos >= 0));
  if (ids.add_bos && ids.bos < 0) {
    return Error{
        ErrorCode::kInvalidFile,
        "tokenizer.ggml.add_bos_token is true, but there is no tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.bos_token_id"};
  }
  if (ids.add_eos && ids.eos < 0) {
    return Error{
        ErrorCode::kInvalidFile,
        "tokenizer.ggml.add_eos_token is true, but there is no tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eos_token_id"};
  }
  CUTAWAY_OUT(span, "bos", ids.bos, "eos", ids.eos, "eot", ids.eot, "add_bos", ids.add_bos);
  return ids;
}

std::vector<int32_t> find_end_ids(const Tokenizer::SpecialIds& ids, const Vocabulary& vocabulary) {
  CUTAWAY_SPAN(span, "text::find_end_ids");
  std::vector<int32_t> ends = {ids.eos, ids.eot, ids.eom};
  for (const std::string_view spelling : kTurnEnds) {
    const int32_t id = vocabulary.find_special(spelling);
    if (id >= 0 && vocabulary.type(id) == TokenType::kControl) ends.push_back(id);
  }
  // gpt-oss writes <|end|> after each part of an answer; <|return|> and <|call|> end its turn.
  const int32_t part_end = vocabulary.find_special("<|end|>");
  if (vocabulary.find_special("<|return|>") >= 0 && vocabulary.find_special("<|call|>") >= 0 &&
      part_end != ids.eos && part_end != ids.eot) {
    std::erase(ends, part_end);
  }
  std::erase(ends, -1);
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  CUTAWAY_OUT(span, "ids", ends);
  return ends;
}

Result<VocabularyTokenizer::Parts> VocabularyTokenizer::Parts::read(
    const Metadata& metadata, const std::string& model, Spelling spelling,
    const SpecialDefaults& defaults) {
  CUTAWAY_SPAN(span, "text::VocabularyTokenizer::Parts::read", "model", model);
  CUTAWAY_ASSIGN(Vocabulary vocabulary, Vocabulary::read(metadata, spelling));
  CUTAWAY_ASSIGN(SpecialMatcher specials, SpecialMatcher::create(vocabulary));
  CUTAWAY_ASSIGN(const SpecialIds ids, read_special_ids(metadata, vocabulary.size(), defaults));
  return Parts{model, std::make_shared<const Vocabulary>(std::move(vocabulary)),
               std::move(specials), ids};
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::create(const Metadata& metadata) {
  CUTAWAY_SPAN(span, "text::Tokenizer::create");
  CUTAWAY_ASSIGN(const std::string model, metadata.string("tokenizer.ggml.model"));
  std::shared_ptr<const Tokenizer> tokenizer;
  if (model == "gpt2" || model == "llama" || model == "gemma4") {
    CUTAWAY_ASSIGN(tokenizer, create_bpe(metadata, model));
  } else if (model == "bert") {
    CUTAWAY_ASSIGN(tokenizer, create_wordpiece(metadata));
  } else if (model == "t5") {
    CUTAWAY_ASSIGN(tokenizer, create_unigram(metadata));
  } else {
    return Error{ErrorCode::kUnsupported,
                 "tokenizer.ggml.model is \"" + model +
                     "\"; this build knows gpt2 (byte-level BPE), llama (SentencePiece's BPE), "
                     "gemma4 (BPE over characters), bert (WordPiece) and t5 (Unigram)",
                 "tokenizer.ggml.model"};
  }
  CUTAWAY_OUT(span, "model", tokenizer->model_name(), "pre", tokenizer->pre_tokenizer_name(),
              "vocab_size", tokenizer->vocab_size());
  return tokenizer;
}

Result<std::vector<int32_t>> Tokenizer::encode_ids(std::string_view text, bool parse_special,
                                                   bool add_special) const {
  CUTAWAY_SPAN(span, "text::Tokenizer::encode_ids", "text", text, "parse_special", parse_special,
               "add_special", add_special);
  const Segment segment{std::string(text), parse_special};
  CUTAWAY_ASSIGN(const std::vector<EncodedToken> tokens,
                 encode(std::span(&segment, 1), EncodeOptions{add_special}));
  std::vector<int32_t> ids;
  ids.reserve(tokens.size());
  for (const EncodedToken& token : tokens) ids.push_back(token.id);
  CUTAWAY_OUT(span, "ids", ids, "n", ids.size());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool special) const {
  CUTAWAY_SPAN(span, "text::Tokenizer::decode", "ids", ids, "special", special);
  std::string out;
  bool first = has_space_prefix();  // no text yet
  for (const int32_t id : ids) {
    std::string_view bytes = token_bytes(id, special);
    if (first && !bytes.empty()) {
      const TokenType type = token_type(id);
      const bool is_text = type != TokenType::kControl && type != TokenType::kUserDefined;
      if (bytes[0] == ' ' && is_text) bytes.remove_prefix(1);
      first = false;
    }
    out += bytes;
  }
  CUTAWAY_OUT(span, "text", out);
  return out;
}

std::string Tokenizer::piece(int32_t id) const {
  CUTAWAY_SPAN(span, "text::Tokenizer::piece", "id", id);
  std::string out = utf8_replace_invalid(token_bytes(id, true));
  CUTAWAY_OUT(span, "piece", out);
  return out;
}

}  // namespace cutaway::text
