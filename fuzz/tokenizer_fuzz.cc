// Vocabularies and texts from anywhere: encoding never fails where every byte has a token, decoding
// gives the bytes back, and no control token comes from text that is not trusted.
//
// Input: one byte of settings, then (with bit 7 set) a vocabulary, one item a line: "t" + digit of
// the type + token, or "m" + merge, up to an empty line; then the text, cut into segments at bytes
// 0x1E (what follows is trusted) and 0x1F (is not).
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

constexpr std::array<const char*, 4> kPre = {"gpt-2", "smollm", "qwen2", "llama-bpe"};

struct VocabLists {
  std::vector<std::string> tokens, merges;
  std::vector<int64_t> types;
  void token(std::string text, int64_t type) {
    tokens.push_back(std::move(text));
    types.push_back(type);
  }
};

VocabLists all_bytes() {
  VocabLists lists;
  for (int b = 0; b < 256; ++b) {
    std::string spelling;
    utf8_append(spelling, kByteLevel.character[static_cast<size_t>(b)]);
    lists.token(std::move(spelling), 1);
  }
  return lists;
}

VocabLists fixed_vocabulary() {
  VocabLists lists = all_bytes();
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
VocabLists read_vocabulary(std::string_view& data) {
  VocabLists lists = all_bytes();
  while (!data.empty()) {
    const size_t end = std::min(data.find('\n'), data.size());
    const std::string_view line = data.substr(0, end);
    data.remove_prefix(std::min(end + 1, data.size()));
    if (line.empty()) break;
    if (line[0] == 'm') lists.merges.emplace_back(line.substr(1));
    if (line[0] == 't' && line.size() >= 2) lists.token(std::string(line.substr(2)), line[1] - '0');
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
    for (size_t i = token.begin; i < token.end; ++i) CUTAWAY_CHECK(trusted[i]);
  }
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
    CUTAWAY_CHECK(utf8_valid(streamed) || !utf8_valid(text));
  }
  streamed += stream.finish();
  for (const TracedWord& word : *words) {
    traced.insert(traced.end(), word.ids.begin(), word.ids.end());
  }
  CUTAWAY_CHECK(ids == traced);
  const std::string decoded = tokenizer->decode(ids, true);
  CUTAWAY_CHECK(decoded == streamed);
  if (tokenizer->pre_tokenizer_name() == "qwen2") return;  // NFC changes the text
  CUTAWAY_CHECK(decoded == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  std::string_view data(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const bool own = (bytes[0] & 0x80) != 0;
  const VocabLists lists = own ? read_vocabulary(data) : fixed_vocabulary();
  Metadata metadata;
  metadata.insert("tokenizer.ggml.model", std::string("gpt2"));
  metadata.insert("tokenizer.ggml.pre", std::string(kPre[bytes[0] & 3]));
  metadata.insert("tokenizer.ggml.tokens", lists.tokens);
  metadata.insert("tokenizer.ggml.token_type", lists.types);
  metadata.insert("tokenizer.ggml.merges", lists.merges);
  const auto tokenizer = Tokenizer::create(metadata);
  CUTAWAY_CHECK(own || tokenizer.ok());
  if (tokenizer.ok()) check_text(*tokenizer, data);
  return 0;
}
