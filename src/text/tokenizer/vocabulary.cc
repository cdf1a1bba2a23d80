#include "text/tokenizer/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/hash_mix.h"
#include "text/tokenizer/byte_level.h"
#include "trace/trace.h"

namespace cutaway::text {
namespace {

constexpr const char* kTokens = "tokenizer.ggml.tokens";
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

}  // namespace

Result<Vocabulary> Vocabulary::read_byte_level(const Metadata& metadata) {
  CUTAWAY_SPAN(span, "text::Vocabulary::read_byte_level");
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
  CUTAWAY_ASSIGN(v.types_, read_types(metadata, tokens->size()));
  v.arena_.resize(total);
  v.offsets_.reserve(tokens->size() + 1);
  v.is_text_.assign(tokens->size(), false);
  v.byte_tokens_.fill(-1);
  char* out = v.arena_.data();
  for (size_t i = 0; i < tokens->size(); ++i) {
    v.offsets_.push_back(static_cast<uint32_t>(out - v.arena_.data()));
    const std::string& token = (*tokens)[i];
    const TokenType type = v.types_[i];
    const bool special = type == TokenType::kControl || type == TokenType::kUserDefined;
    // Unused, unknown and "byte" tokens of a byte-level file are never made from text.
    const int64_t n = type == TokenType::kNormal ? byte_level_decode(token, out) : -1;
    if (n < 0) {
      std::copy(token.begin(), token.end(), out);
      out += token.size();
      if (special) v.specials_.push_back(static_cast<int32_t>(i));
      continue;
    }
    if (n > 0) v.is_text_[i] = true;
    if (n == 1) v.byte_tokens_[static_cast<uint8_t>(*out)] = static_cast<int32_t>(i);
    v.longest_text_ = std::max(v.longest_text_, static_cast<size_t>(n));
    out += n;
  }
  v.offsets_.push_back(static_cast<uint32_t>(out - v.arena_.data()));
  v.arena_.resize(v.offsets_.back());
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
  slots_.assign(std::bit_ceil(types_.size() * 2), Slot{0, -1});
  const size_t mask = slots_.size() - 1;
  for (int32_t id = 0; id < size(); ++id) {
    if (!is_text_[static_cast<size_t>(id)]) continue;
    const std::string_view s = bytes(id);
    const uint32_t hash = hash_bytes(s);
    size_t i = hash & mask;
    while (slots_[i].id >= 0 && !(slots_[i].hash == hash && bytes(slots_[i].id) == s)) {
      i = (i + 1) & mask;
    }
    if (slots_[i].id >= 0) has_duplicates_ = true;
    slots_[i] = {hash, id};
  }
}

int32_t Vocabulary::find_text(std::string_view s) const {
  const uint32_t hash = hash_bytes(s);
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask; slots_[i].id >= 0; i = (i + 1) & mask) {
    if (slots_[i].hash == hash && bytes(slots_[i].id) == s) return slots_[i].id;
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
