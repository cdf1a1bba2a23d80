#include "text/tokenizer/tokenizer.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/tokenizer/byte_bpe_tokenizer.h"
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
    "</s>",                                     // Llama 2, Mistral
    "<|return|>",                               // gpt-oss: end of the answer
    "<|call|>",                                 // gpt-oss: a tool call is complete
    "<|endofturn|>",                            // EXAONE, HyperCLOVA
    "<|END_OF_TURN_TOKEN|>",                    // Command R
    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",  // DeepSeek
};

}  // namespace

Result<Tokenizer::SpecialIds> read_special_ids(const Metadata& metadata, int32_t vocab_size,
                                               bool default_add_bos) {
  CUTAWAY_SPAN(span, "text::read_special_ids", "vocab_size", vocab_size);
  Tokenizer::SpecialIds ids;
  struct Field {
    const char* key;
    int32_t* id;
  };
  const Field fields[] = {{"tokenizer.ggml.bos_token_id", &ids.bos},
                          {"tokenizer.ggml.eos_token_id", &ids.eos},
                          {"tokenizer.ggml.eot_token_id", &ids.eot},
                          {"tokenizer.ggml.eom_token_id", &ids.eom},
                          {"tokenizer.ggml.unknown_token_id", &ids.unknown},
                          {"tokenizer.ggml.padding_token_id", &ids.padding}};
  for (const Field& field : fields) {
    CUTAWAY_ASSIGN(const int64_t id, metadata.integer_or(field.key, -1, 0, vocab_size - 1));
    *field.id = static_cast<int32_t>(id);
  }
  CUTAWAY_ASSIGN(ids.add_bos, metadata.boolean_or("tokenizer.ggml.add_bos_token",
                                                  default_add_bos && ids.bos >= 0));
  CUTAWAY_ASSIGN(ids.add_eos, metadata.boolean_or("tokenizer.ggml.add_eos_token", false));
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
  std::erase(ends, -1);
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  CUTAWAY_OUT(span, "ids", ends);
  return ends;
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::create(const Metadata& metadata) {
  CUTAWAY_SPAN(span, "text::Tokenizer::create");
  CUTAWAY_ASSIGN(const std::string model, metadata.string("tokenizer.ggml.model"));
  if (model != "gpt2") {
    return Error{
        ErrorCode::kUnsupported,
        "tokenizer.ggml.model is \"" + model + "\"; this build knows gpt2 (byte-level BPE)",
        "tokenizer.ggml.model"};
  }
  CUTAWAY_ASSIGN(std::shared_ptr<const Tokenizer> tokenizer, create_byte_bpe(metadata));
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
  for (const int32_t id : ids) out += token_bytes(id, special);
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
