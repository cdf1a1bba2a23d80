#include "text/tokenizer/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "text/tokenizer/byte_level.h"
#include "trace/trace.h"

namespace cutaway::text {
namespace {

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kScores = "tokenizer.ggml.scores";
constexpr const char* kTypes = "tokenizer.ggml.token_type";

// The token types of GGUF: 1 to 6.
Result<std::vector<TokenType>> read_types(const Metadata& metadata, size_t count) {
  std::vector<TokenType> types(count, TokenType::kNormal);
  if (!metadata.has(kTypes)) return types;
  CUTAWAY_ASSIGN(const std::vector<int64_t> values, metadata.integers(kTypes));
  if (values.size() != count) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("{} has {} entries, {} has {}: they must be as many", kTypes,
                             values.size(), kTokens, count),
                 kTypes};
  }
  for (size_t i = 0; i < count; ++i) {
    if (values[i] < 1 || values[i] > 6) {
      return Error{
          ErrorCode::kInvalidFile,
          fmt::format("{}[{}] is {}; token types are 1 (normal) to 6 (byte)", kTypes, i, values[i]),
          kTypes};
    }
    types[i] = static_cast<TokenType>(values[i] - 1);
  }
  return types;
}

// The byte that "<0x41>" stands for; −1: another spelling.
int byte_of_spelling(std::string_view token) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = digit(token[3]), low = digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// The tokens that are found as whole spellings.
bool is_special(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUserDefined ||
         type == TokenType::kUnknown;
}

}  // namespace

Result<std::vector<double>> read_scores(const Metadata& metadata, size_t tokens) {
  CUTAWAY_SPAN(span, "text::read_scores", "tokens", tokens);
  CUTAWAY_ASSIGN(std::vector<double> scores, metadata.numbers(kScores));
  if (scores.size() != tokens) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("{} has {} entries, {} has {}: they must be as many", kScores,
                             scores.size(), kTokens, tokens),
                 kScores};
  }
  for (size_t i = 0; i < tokens; ++i) {
    if (!std::isfinite(scores[i])) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("{}[{}] is {}; scores are finite numbers", kScores, i, scores[i]),
                   kScores};
    }
  }
  return scores;
}

namespace {

std::string replace_all(std::string_view text, std::string_view what, std::string_view by) {
  std::string out;
  for (size_t pos = 0;;) {
    const size_t at = text.find(what, pos);
    out.append(text, pos, at - pos);
    if (at == std::string_view::npos) return out;
    out += by;
    pos = at + what.size();
  }
}

}  // namespace

std::string without_space_marks(std::string_view spelling) {
  return replace_all(spelling, "\u2581", " ");
}

std::string with_space_marks(std::string_view text) { return replace_all(text, " ", "\u2581"); }

// Appends the bytes of a token to the arena; true: ordinary text may become it.
Result<bool> Vocabulary::add_text(int32_t id, std::string_view token, Spelling spelling) {
  const TokenType type = types_[static_cast<size_t>(id)];
  if (spelling == Spelling::kByteLevel) {
    // Unused and "byte" tokens of a byte-level file are never made from text.
    if (type == TokenType::kNormal) {
      const size_t begin = arena_.size();
      arena_.resize(begin + token.size());
      const int64_t n = byte_level_decode(token, arena_.data() + begin);
      arena_.resize(begin + static_cast<size_t>(std::max<int64_t>(n, 0)));
      if (n == 1) byte_tokens_[static_cast<uint8_t>(arena_.back())] = id;
      if (n >= 0) return n > 0;
    }
    arena_ += token;
    return false;
  }
  if (type == TokenType::kByte) {
    const int byte = byte_of_spelling(token);
    if (byte < 0) {
      return Error{
          ErrorCode::kInvalidFile,
          fmt::format("{}[{}] is a byte token, but not spelled <0x00> to <0xFF>", kTokens, id),
          kTokens};
    }
    arena_ += static_cast<char>(byte);
    byte_tokens_[static_cast<size_t>(byte)] = id;
    return false;
  }
  if (type == TokenType::kControl || type == TokenType::kUnknown) {
    arena_ += token;
    return false;
  }
  arena_ += without_space_marks(token);
  return type != TokenType::kUserDefined && !token.empty();
}

Result<Vocabulary> Vocabulary::read(const Metadata& metadata, Spelling spelling) {
  CUTAWAY_SPAN(span, "text::Vocabulary::read", "byte_level", spelling == Spelling::kByteLevel);
  CUTAWAY_ASSIGN(const std::vector<std::string>* tokens, metadata.strings(kTokens));
  size_t total = 0;
  for (const std::string& token : *tokens) total += token.size();
  if (tokens->empty() || tokens->size() > (1u << 24) || total >= (uint64_t{1} << 32)) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("{} has {} entries of {} bytes; 1 to 16777216 of under 4 GiB can be "
                             "read",
                             kTokens, tokens->size(), total),
                 kTokens};
  }
  Vocabulary v;
  v.spelling_ = spelling;
  CUTAWAY_ASSIGN(v.types_, read_types(metadata, tokens->size()));
  // Where merges decide, scores are for nobody; but a file whose lists do not match is not whole.
  if (metadata.has(kScores)) CUTAWAY_TRY(read_scores(metadata, tokens->size()));
  v.arena_.reserve(total);
  v.offsets_.reserve(tokens->size() + 1);
  v.is_text_.assign(tokens->size(), false);
  v.byte_tokens_.fill(-1);
  for (size_t i = 0; i < tokens->size(); ++i) {
    const size_t begin = v.arena_.size();
    v.offsets_.push_back(static_cast<uint32_t>(begin));
    CUTAWAY_ASSIGN(const bool is_text, v.add_text(static_cast<int32_t>(i), (*tokens)[i], spelling));
    v.is_text_[i] = is_text;
    if (is_text) v.longest_text_ = std::max(v.longest_text_, v.arena_.size() - begin);
    if (is_special(v.types_[i])) v.specials_.push_back(static_cast<int32_t>(i));
  }
  v.offsets_.push_back(static_cast<uint32_t>(v.arena_.size()));
  v.index_text();
  v.specials_by_spelling_ = v.specials_;
  std::sort(v.specials_by_spelling_.begin(), v.specials_by_spelling_.end(),
            [&](int32_t a, int32_t b) {
              return v.bytes(a) != v.bytes(b) ? v.bytes(a) < v.bytes(b) : a < b;
            });
  CUTAWAY_OUT(span, "tokens", v.size(), "specials", v.specials_.size());
  return v;
}

void Vocabulary::index_text() {
  CUTAWAY_SPAN(span, "text::Vocabulary::index_text");
  slots_.assign(std::bit_ceil(types_.size() * 2), Slot{});
  const size_t mask = slots_.size() - 1;
  for (int32_t id = 0; id < size(); ++id) {
    if (!is_text_[static_cast<size_t>(id)]) continue;
    const std::string_view s = bytes(id);
    const uint64_t head = load_up_to_8(s.data(), s.size());
    size_t i = hash_bytes(s) & mask;
    while (slots_[i].id >= 0 && !holds(slots_[i], head, s)) i = (i + 1) & mask;
    if (slots_[i].id >= 0) has_duplicates_ = true;
    slots_[i] = {head, static_cast<uint32_t>(s.size()), id};
  }
}

int32_t Vocabulary::find_text(std::string_view s, uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  const uint64_t head = load_up_to_8(s.data(), s.size());
  for (size_t i = hash & mask; slots_[i].id >= 0; i = (i + 1) & mask) {
    if (holds(slots_[i], head, s)) return slots_[i].id;
  }
  return -1;
}

int32_t Vocabulary::find_special(std::string_view spelling) const {
  CUTAWAY_SPAN(span, "text::Vocabulary::find_special", "spelling", spelling);
  auto it = std::upper_bound(specials_by_spelling_.begin(), specials_by_spelling_.end(), spelling,
                             [&](std::string_view s, int32_t id) { return s < bytes(id); });
  if (it == specials_by_spelling_.begin() || bytes(*(it - 1)) != spelling) return -1;
  return *(it - 1);
}

}  // namespace cutaway::text
