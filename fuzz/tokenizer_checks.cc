#include "fuzz/tokenizer_checks.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/utf8.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/detokenizer.h"

namespace cutaway::fuzz {

using namespace cutaway::text;  // NOLINT

void VocabLists::add_all_bytes(bool byte_level) {
  for (int b = 0; b < 256; ++b) {
    std::string spelling;
    if (byte_level) {
      utf8_append(spelling, kByteLevel.character[static_cast<size_t>(b)]);
    } else {
      constexpr const char* kHex = "0123456789ABCDEF";
      spelling = std::string("<0x") + kHex[b >> 4] + kHex[b & 15] + ">";
    }
    add(std::move(spelling), byte_level ? 1 : 6, -100);
  }
}

Result<std::shared_ptr<const Tokenizer>> make_tokenizer(const Kind& kind, int rules,
                                                        const VocabLists& lists) {
  Metadata metadata;
  metadata.insert("tokenizer.ggml.model", std::string(kind.model));
  metadata.insert("tokenizer.ggml.tokens", lists.tokens);
  metadata.insert("tokenizer.ggml.token_type", lists.types);
  metadata.insert("tokenizer.ggml.merges", lists.merges);
  if (kind.byte_level()) {
    metadata.insert("tokenizer.ggml.pre", std::string(kind.pre));
    // Control tokens stand at the end of the fixed vocabularies.
    metadata.insert("tokenizer.ggml.bos_token_id", static_cast<int64_t>(lists.tokens.size()) - 1);
    metadata.insert("tokenizer.ggml.eos_token_id", static_cast<int64_t>(lists.tokens.size()) - 1);
    metadata.insert("tokenizer.ggml.add_bos_token", (rules & 1) != 0);
    metadata.insert("tokenizer.ggml.add_eos_token", (rules & 2) != 0);
  } else {
    metadata.insert("tokenizer.ggml.scores", lists.scores);
    metadata.insert("tokenizer.ggml.unknown_token_id", int64_t{0});
    metadata.insert("tokenizer.ggml.add_space_prefix", (rules & 1) != 0);
    metadata.insert("tokenizer.ggml.remove_extra_whitespaces", (rules & 2) != 0);
    metadata.insert("tokenizer.ggml.normalizer.lowercase", (rules & 4) != 0);
    if (!lists.map.empty()) metadata.insert("tokenizer.ggml.precompiled_charsmap", lists.map);
  }
  return Tokenizer::create(metadata);
}

namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

PlainBpe::PlainBpe(const Tokenizer& tokenizer, const std::vector<std::string>& merges) {
  const std::string_view pre = tokenizer.pre_tokenizer_name();
  ignore_merges_ = pre == "llama-bpe" || pre == "minicpm5" || pre == "gpt-4o" || pre == "tekken";
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.token_type(id) != TokenType::kNormal) continue;
    ids_[std::string(tokenizer.token_bytes(id, true))] = id;
  }
  const auto id_of = [&](std::string_view spelling) {
    std::string bytes(spelling.size(), '\0');
    const int64_t n = byte_level_decode(spelling, bytes.data());
    CUTAWAY_CHECK(n > 0);
    return ids_.at(bytes.substr(0, static_cast<size_t>(n)));
  };
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const size_t space = merge.find(' ');
    const int32_t left = id_of(merge.substr(0, space)), right = id_of(merge.substr(space + 1));
    std::string whole(merge);
    whole.erase(space, 1);
    merges_[pair_of(left, right)] = {rank, id_of(whole)};
  }
}

std::vector<int32_t> PlainBpe::encode(std::string_view word) const {
  if (const auto whole = ids_.find(word); ignore_merges_ && whole != ids_.end()) {
    return {whole->second};
  }
  std::vector<int32_t> ids;
  for (size_t i = 0; i < word.size(); ++i) ids.push_back(ids_.find(word.substr(i, 1))->second);
  for (;;) {
    size_t best = ids.size();
    Merge least{merges_.size(), -1};
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto merge = merges_.find(pair_of(ids[i], ids[i + 1]));
      if (merge == merges_.end() || merge->second.rank >= least.rank) continue;
      least = merge->second;
      best = i;
    }
    if (best == ids.size()) return ids;
    ids[best] = least.id;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

namespace {

std::vector<Segment> read_segments(std::string_view data, bool first_trusted) {
  std::vector<Segment> segments = {{"", first_trusted}};
  for (const char c : data) {
    if (c == 0x1E || c == 0x1F) {
      segments.push_back({"", c == 0x1E});
    } else {
      segments.back().text += c;
    }
  }
  return segments;
}

// Places are in order, and control tokens come from text that is trusted alone.
void check_places(const Tokenizer& tokenizer, const std::vector<Segment>& segments,
                  const std::vector<EncodedToken>& tokens) {
  std::vector<bool> trusted;
  for (const Segment& s : segments) trusted.insert(trusted.end(), s.text.size(), s.parse_special);
  for (const EncodedToken& token : tokens) {
    CUTAWAY_CHECK(token.id >= 0 && token.id < tokenizer.vocab_size());
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

void check_words(const Tokenizer& tokenizer, const std::vector<TracedWord>& words,
                 const std::vector<int32_t>& ids, const PlainBpe* plain) {
  constexpr size_t kLongest = 128;  // bytes: by definition it is slow
  std::vector<int32_t> traced;
  for (const TracedWord& word : words) {
    traced.insert(traced.end(), word.ids.begin(), word.ids.end());
    std::string text;
    bool normal = plain != nullptr;
    for (const int32_t id : word.ids) {
      normal = normal && tokenizer.token_type(id) == TokenType::kNormal;
      text += tokenizer.token_bytes(id, true);
    }
    if (normal && text.size() <= kLongest) CUTAWAY_CHECK(plain->encode(text) == word.ids);
  }
  CUTAWAY_CHECK(traced == ids);
}

// The ids one by one are the text of all of them; of valid text no piece is cut inside a character.
void check_stream(const std::shared_ptr<const Tokenizer>& tokenizer,
                  const std::vector<int32_t>& ids, const std::string& decoded, bool valid) {
  StreamDetokenizer stream(tokenizer, true);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string piece = stream.push(id);
    CUTAWAY_CHECK(stream.held() <= 3);
    CUTAWAY_CHECK(!valid || utf8_valid(piece));
    streamed += piece;
  }
  streamed += stream.finish();
  CUTAWAY_CHECK(decoded == streamed || streamed == " " + decoded);
}

}  // namespace

void check_text(const std::shared_ptr<const Tokenizer>& tokenizer, std::string_view data,
                const Switches& switches, const PlainBpe* plain) {
  const std::vector<Segment> segments = read_segments(data, switches.first_trusted);
  std::string text;
  for (const Segment& segment : segments) text += segment.text;
  const auto words = tokenizer->trace_merges(segments);
  const auto tokens = tokenizer->encode(segments, {.add_special = false});
  CUTAWAY_CHECK(tokens.ok() == words.ok());
  if (!tokens.ok()) {
    CUTAWAY_CHECK(tokens.error().code == ErrorCode::kInvalidArgument);
    CUTAWAY_CHECK(tokenizer->encode(segments, {.drop_unencodable = true}).ok());
    return;
  }
  check_places(*tokenizer, segments, *tokens);
  std::vector<int32_t> ids;
  for (const EncodedToken& token : *tokens) ids.push_back(token.id);
  check_words(*tokenizer, *words, ids, plain);
  const std::string decoded = tokenizer->decode(ids, true);
  check_stream(tokenizer, ids, decoded, utf8_valid(text) && tokenizer->model_name() == "gpt2");
  if (comes_back(*tokenizer, *tokens, text)) CUTAWAY_CHECK(decoded == text);
  if (!switches.add_special && !switches.drop) return;
  // With BOS and EOS the same ids stand between them, also where bytes may be dropped.
  const auto more = tokenizer->encode(
      segments, {.add_special = switches.add_special, .drop_unencodable = switches.drop});
  CUTAWAY_CHECK(more.ok());
  const Tokenizer::SpecialIds& special = tokenizer->special_ids();
  const size_t first = switches.add_special && special.add_bos ? 1 : 0;
  const size_t last = switches.add_special && special.add_eos ? 1 : 0;
  CUTAWAY_CHECK(more->size() == ids.size() + first + last);
  for (size_t i = 0; i < ids.size(); ++i) CUTAWAY_CHECK((*more)[first + i].id == ids[i]);
}

}  // namespace cutaway::fuzz
