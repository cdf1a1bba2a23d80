// Vocabularies and texts from anywhere: encoding never fails where every byte has a token, decoding
// gives the bytes back, and no control token comes from text that is not trusted.
//
// Input: one byte of settings (the kind of tokenizer, then BERT's or SentencePiece's rules), then
// (with bit 7 set) a vocabulary, one item a line: "t" + digit of the type + token, "m" + merge, "c"
// + bytes of the character map, or "!" for no bytes; up to an empty line; then the text, cut into
// segments at bytes 0x1E (what follows is trusted) and 0x1F (is not).
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tokenizer.h"

using namespace cutaway;        // NOLINT
using namespace cutaway::text;  // NOLINT

namespace {

struct Kind {
  const char* model;
  const char* pre;
};
constexpr std::array<Kind, 16> kKinds = {{{"gpt2", "gpt-2"},
                                          {"gpt2", "smollm"},
                                          {"gpt2", "qwen2"},
                                          {"gpt2", "llama-bpe"},
                                          {"gpt2", "deepseek-llm"},
                                          {"gpt2", "deepseek-coder"},
                                          {"gpt2", "deepseek-v3"},
                                          {"gpt2", "gpt-4o"},
                                          {"gpt2", "tekken"},
                                          {"gpt2", "falcon"},
                                          {"gpt2", "viking"},
                                          {"gpt2", "jais-2"},
                                          {"llama", ""},
                                          {"gemma4", ""},
                                          {"bert", ""},
                                          {"t5", ""}}};

struct VocabLists {
  std::vector<std::string> tokens, merges;
  std::vector<int64_t> types, map;
  bool byte_level = true;
  void token(std::string text, int64_t type) {
    tokens.push_back(std::move(text));
    types.push_back(type);
  }
};

VocabLists all_bytes(bool byte_level) {
  VocabLists lists;
  lists.byte_level = byte_level;
  if (!byte_level) {
    lists.token("<unk>", 2);
    lists.token("<s>", 3);
    lists.token("</s>", 3);
  }
  for (int b = 0; b < 256; ++b) {
    std::string spelling;
    if (byte_level) {
      utf8_append(spelling, kByteLevel.character[static_cast<size_t>(b)]);
    } else {
      constexpr const char* kHex = "0123456789ABCDEF";
      spelling = std::string("<0x") + kHex[b >> 4] + kHex[b & 15] + ">";
    }
    lists.token(std::move(spelling), byte_level ? 1 : 6);
  }
  return lists;
}

VocabLists fixed_vocabulary(bool byte_level) {
  VocabLists lists = all_bytes(byte_level);
  if (!byte_level) {
    for (const char* token : {"\u2581", "h", "e", "l", "o", "a", "\u2581h", "he", "ll", "hell",
                              "\u2581hello", "\u2581a", "aa", "aaaa", "\uD55C", "\u2581,"}) {
      lists.token(token, 1);
    }
    for (const char* merge : {"h e", "l l", "he ll", "\u2581 h", "\u2581 a", "a a", "aa aa"}) {
      lists.merges.emplace_back(merge);
    }
    for (const char* control : {"<|im_start|>", "<|", "aaa"}) lists.token(control, 3);
    for (const char* user : {"<think>", "\u2581\u2581", "<|im"}) lists.token(user, 4);
    return lists;
  }
  for (const char* merge :
       {"h e", "l l", "he ll", "hell o", "a a", "aa aa", "aaaa aaaa", "\u0120 a", "1 2", "' s",
        "\u0120 \u0120", "\u00EC \u0137", "\u00EC\u0137 \u012A"}) {
    lists.merges.emplace_back(merge);
    std::string joined = merge;
    joined.erase(joined.find(' '), 1);
    lists.token(std::move(joined), 1);
  }
  for (const char* control : {"<|im_start|>", "<|im_end|>", "<|", "aaa"}) lists.token(control, 3);
  for (const char* user : {"<think>", "  ", "<|im"}) lists.token(user, 4);
  return lists;
}

// Takes the vocabulary's lines off `data`.
VocabLists read_vocabulary(std::string_view& data, bool byte_level) {
  VocabLists lists = all_bytes(byte_level);
  while (!data.empty()) {
    const size_t end = std::min(data.find('\n'), data.size());
    const std::string_view line = data.substr(0, end);
    data.remove_prefix(std::min(end + 1, data.size()));
    if (line.empty()) break;
    if (line[0] == 'm') lists.merges.emplace_back(line.substr(1));
    if (line[0] == 't' && line.size() >= 2) lists.token(std::string(line.substr(2)), line[1] - '0');
    if (line[0] == 'c') {
      for (const char c : line.substr(1)) lists.map.push_back(static_cast<uint8_t>(c));
    }
    if (line[0] == '!') lists = VocabLists();  // then not even the bytes are there
  }
  return lists;
}

std::vector<Segment> read_segments(std::string_view data) {
  std::vector<Segment> segments(1);
  for (const char c : data) {
    if (c == 0x1E || c == 0x1F) {
      segments.push_back({"", c == 0x1E});
    } else {
      segments.back().text += c;
    }
  }
  return segments;
}

void check_control_tokens(const Tokenizer& tokenizer, const std::vector<Segment>& segments,
                          const std::vector<EncodedToken>& tokens) {
  std::vector<bool> trusted;
  for (const Segment& s : segments) trusted.insert(trusted.end(), s.text.size(), s.parse_special);
  for (const EncodedToken& token : tokens) {
    CUTAWAY_CHECK(token.begin <= token.end && token.end <= trusted.size());
    if (tokenizer.token_type(token.id) != TokenType::kControl) continue;
    if (token.id == tokenizer.special_ids().unknown) continue;  // BERT's is a control token
    for (size_t i = token.begin; i < token.end; ++i) CUTAWAY_CHECK(trusted[i]);
  }
}

// Must decoding give this text back?
bool comes_back(const Tokenizer& tokenizer, const std::vector<EncodedToken>& tokens,
                std::string_view text) {
  using Normalization = Tokenizer::Normalization;
  switch (tokenizer.normalization()) {
    case Normalization::kNone:
      return true;
    case Normalization::kNfc:
    case Normalization::kLossy:
      return false;
    case Normalization::kSpaces:
      break;
  }
  if (text.find("\u2581") != std::string_view::npos) return false;
  if (tokenizer.model_name() == "t5" && !utf8_valid(text)) return false;  // becomes U+FFFD
  for (const EncodedToken& token :
       tokens) {  // what follows one gets a space; unknown ones are lost
    const TokenType type = tokenizer.token_type(token.id);
    if (token.id == tokenizer.special_ids().unknown) return false;
    if (type != TokenType::kNormal && type != TokenType::kByte && type != TokenType::kUnused) {
      return false;
    }
  }
  return true;
}

void check_text(const std::shared_ptr<const Tokenizer>& tokenizer, std::string_view data) {
  const std::vector<Segment> segments = read_segments(data);
  std::string text;
  for (const Segment& segment : segments) text += segment.text;
  const auto tokens = tokenizer->encode(segments, {});
  const auto words = tokenizer->trace_merges(segments);
  CUTAWAY_CHECK(tokens.ok() == words.ok());
  if (!tokens.ok()) {
    CUTAWAY_CHECK(tokens.error().code == ErrorCode::kInvalidArgument);
    CUTAWAY_CHECK(tokenizer->encode(segments, {.drop_unencodable = true}).ok());
    return;
  }
  check_control_tokens(*tokenizer, segments, *tokens);
  std::vector<int32_t> ids, traced;
  StreamDetokenizer stream(tokenizer, true);
  std::string streamed;
  for (const EncodedToken& token : *tokens) {
    ids.push_back(token.id);
    streamed += stream.push(token.id);
    CUTAWAY_CHECK(stream.held() <= 3);
    CUTAWAY_CHECK(utf8_valid(streamed) || !utf8_valid(text) || tokenizer->model_name() != "gpt2");
  }
  streamed += stream.finish();
  for (const TracedWord& word : *words) {
    traced.insert(traced.end(), word.ids.begin(), word.ids.end());
  }
  CUTAWAY_CHECK(ids == traced);
  const std::string decoded = tokenizer->decode(ids, true);
  CUTAWAY_CHECK(decoded == streamed || streamed == " " + decoded);
  if (comes_back(*tokenizer, *tokens, text)) CUTAWAY_CHECK(decoded == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  std::string_view data(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const bool own = (bytes[0] & 0x80) != 0;
  const Kind kind = kKinds[bytes[0] & 15];
  const bool byte_level = std::string_view(kind.model) == "gpt2";
  const VocabLists lists = own ? read_vocabulary(data, byte_level) : fixed_vocabulary(byte_level);
  std::vector<double> scores;
  for (size_t i = 0; i < lists.tokens.size(); ++i)
    scores.push_back(-static_cast<double>(i * 7 % 16));
  Metadata metadata;
  metadata.insert("tokenizer.ggml.model", std::string(kind.model));
  if (byte_level) metadata.insert("tokenizer.ggml.pre", std::string(kind.pre));
  metadata.insert("tokenizer.ggml.tokens", lists.tokens);
  metadata.insert("tokenizer.ggml.token_type", lists.types);
  metadata.insert("tokenizer.ggml.merges", lists.merges);
  if (!byte_level) {
    metadata.insert("tokenizer.ggml.scores", scores);
    metadata.insert("tokenizer.ggml.add_bos_token", false);
    metadata.insert("tokenizer.ggml.add_eos_token", false);
    metadata.insert("tokenizer.ggml.unknown_token_id", int64_t{0});
    metadata.insert("tokenizer.ggml.add_space_prefix", (bytes[0] & 16) != 0);
    metadata.insert("tokenizer.ggml.remove_extra_whitespaces", (bytes[0] & 32) != 0);
    metadata.insert("tokenizer.ggml.normalizer.lowercase", (bytes[0] & 64) != 0);
    if (!lists.map.empty()) metadata.insert("tokenizer.ggml.precompiled_charsmap", lists.map);
  }
  const auto tokenizer = Tokenizer::create(metadata);
  CUTAWAY_CHECK(own || tokenizer.ok());
  if (tokenizer.ok()) check_text(*tokenizer, data);
  return 0;
}
