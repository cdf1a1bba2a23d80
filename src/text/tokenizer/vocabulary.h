// The tokens of a model file: their bytes, types and look-up, in a few flat blocks of memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash_mix.h"
#include "base/large_memory.h"
#include "base/result.h"
#include "tensor/model_file.h"
#include "text/tokenizer/tokenizer.h"

namespace cutaway::text {

// How a file writes the text of a token.
enum class Spelling {
  kByteLevel,      // every byte as a printable character (byte_level.h)
  kSentencePiece,  // UTF-8 with \u2581 for a space; a byte that has no other token is <0x00> …
                   // <0xFF>
};

// Text in SentencePiece's spelling: every \u2581 becomes a space.
std::string without_space_marks(std::string_view spelling);
std::string with_space_marks(std::string_view text);  // and back

// tokenizer.ggml.scores: one finite number a token. Errors kInvalidFile.
Result<std::vector<double>> read_scores(const Metadata& metadata, size_t tokens);

class Vocabulary {
 public:
  // Reads tokenizer.ggml.tokens and .token_type. Errors kInvalidFile.
  static Result<Vocabulary> read(const Metadata& metadata, Spelling spelling);

  int32_t size() const { return static_cast<int32_t>(types_.size()); }
  TokenType type(int32_t id) const { return types_[static_cast<size_t>(id)]; }
  // Normal and byte tokens: the bytes that they stand for. Others: their spelling.
  std::string_view bytes(int32_t id) const {
    return {arena_.data() + offsets_[static_cast<size_t>(id)],
            offsets_[static_cast<size_t>(id) + 1] - offsets_[static_cast<size_t>(id)]};
  }

  // The token that ordinary text with these bytes may become, −1: none. Control tokens and those
  // that only match as a whole spelling are not among them. Of equal tokens, the last.
  int32_t find_text(std::string_view bytes) const { return find_text(bytes, hash_bytes(bytes)); }
  int32_t find_text(std::string_view bytes, uint32_t hash) const;  // the hash is hash_bytes(bytes)
  // What find_text(bytes, hash) looks at, asked from memory in three steps, each of which needs the
  // one before to have come: a few texts at a time wait for it together.
  void prefetch(uint32_t hash) const { __builtin_prefetch(&slots_[hash & (slots_.size() - 1)]); }
  // The token whose bytes find_text will compare; −1: none has to be.
  int32_t prefetch_token(std::string_view bytes, uint32_t hash) const {
    if (bytes.size() <= 8) return -1;
    const Slot& slot = slots_[hash & (slots_.size() - 1)];
    if (slot.id < 0 || slot.length != bytes.size()) return -1;
    __builtin_prefetch(&offsets_[static_cast<size_t>(slot.id)]);
    return slot.id;
  }
  void prefetch_bytes(int32_t id) const {
    __builtin_prefetch(arena_.data() + offsets_[static_cast<size_t>(id)]);
  }
  bool is_text(int32_t id) const { return is_text_[static_cast<size_t>(id)]; }
  Spelling spelling() const { return spelling_; }
  bool has_duplicates() const { return has_duplicates_; }  // two such tokens with equal bytes
  int32_t byte_token(uint8_t byte) const { return byte_tokens_[byte]; }  // −1: none
  size_t longest_text() const { return longest_text_; }  // bytes of the longest of them

  // By spelling, control, unknown and user-defined tokens only; −1: none.
  int32_t find_special(std::string_view spelling) const;
  const std::vector<int32_t>& specials() const { return specials_; }  // ids, ascending

 private:
  struct Slot {
    uint64_t head = 0;  // the first eight bytes: most tokens are no longer
    uint32_t length = 0;
    int32_t id = -1;  // that: free
  };
  bool holds(const Slot& slot, uint64_t head, std::string_view text) const {
    return slot.head == head && slot.length == text.size() &&
           (text.size() <= 8 || bytes(slot.id).substr(8) == text.substr(8));
  }
  Result<bool> add_text(int32_t id, std::string_view token, Spelling spelling);
  void index_text();

  std::string arena_;              // the bytes of all tokens, one after another
  std::vector<uint32_t> offsets_;  // size() + 1
  std::vector<TokenType> types_;
  std::vector<bool> is_text_;
  LargeVector<Slot> slots_;  // open addressing, a power of two
  std::vector<int32_t> specials_, specials_by_spelling_;
  std::array<int32_t, 256> byte_tokens_{};
  size_t longest_text_ = 0;
  bool has_duplicates_ = false;
  Spelling spelling_ = Spelling::kByteLevel;
};

}  // namespace cutaway::text
