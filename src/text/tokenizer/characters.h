// The symbols with which SentencePiece's BPE begins, one a character; and between which characters
// no token ever reaches.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer/vocabulary.h"

namespace cutaway::text {

class Characters {
 public:
  static constexpr int32_t kNone = -2;  // a character (or stray byte) that no token of text holds

  explicit Characters(const Vocabulary& vocabulary);

  // The symbol of a character: its token; an id past the vocabulary's end when it has none of its
  // own, but others hold it; or kNone.
  int32_t symbol(int32_t code_point) const {
    if (code_point >= 0 && code_point < 128) return ascii_[static_cast<size_t>(code_point)];
    return code_point < 0 ? kNone : find(code_point);
  }

  // One past the greatest symbol.
  int32_t symbols_end() const { return symbols_end_; }

  // May a token hold these two, one after the other? If not, the text can be cut there, whatever
  // the merges are. (A rare yes in error costs time, no correctness.)
  bool joined(int32_t left, int32_t right) const {
    if ((left | right) >= 0 && left < 128 && right < 128) {
      const size_t bit = static_cast<size_t>(left) * 128 + static_cast<size_t>(right);
      return ascii_pairs_[bit / 64] >> (bit % 64) & 1;
    }
    if (left < 0 || right < 0) return false;
    const size_t bit = pair_bit(left, right);
    return pairs_[bit / 64] >> (bit % 64) & 1;
  }
  // End of the piece that begins at text[pos]: the first place where the text can be cut.
  size_t next_cut(std::string_view text, size_t pos) const {
    size_t length = 0;
    int32_t left = code_at(text, pos, length);
    for (pos += length; pos < text.size(); pos += length) {
      const int32_t right = code_at(text, pos, length);
      if (!joined(left, right)) break;
      left = right;
    }
    return pos;
  }

 private:
  static constexpr size_t kPairBits = size_t{1} << 21;

  static int32_t code_at(std::string_view text, size_t pos, size_t& length) {
    const uint8_t byte = static_cast<uint8_t>(text[pos]);
    if (byte < 0x80) {
      length = 1;
      return byte;
    }
    return utf8_decode(text, pos, length);
  }
  static size_t pair_bit(int32_t left, int32_t right) {
    const uint64_t key = static_cast<uint64_t>(left) << 21 | static_cast<uint64_t>(right);
    return (key * 0x9E3779B97F4A7C15u) >> 43;
  }
  static size_t slot_of(int32_t code_point, size_t mask) {
    return (static_cast<uint64_t>(code_point) * 0x9E3779B97F4A7C15u >> 32) & mask;
  }
  int32_t find(int32_t code_point) const {
    const size_t mask = slots_.size() - 1;
    for (size_t i = slot_of(code_point, mask); slots_[i].code_point >= 0; i = (i + 1) & mask) {
      if (slots_[i].code_point == code_point) return slots_[i].symbol;
    }
    return kNone;
  }
  void add_pair(int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const bool ascii = left < 128 && right < 128;
    const size_t bit = ascii ? static_cast<size_t>(left) * 128 + static_cast<size_t>(right)
                             : pair_bit(left, right);
    (ascii ? ascii_pairs_[bit / 64] : pairs_[bit / 64]) |= uint64_t{1} << (bit % 64);
  }

  struct Slot {
    int32_t code_point = -1;  // that: free
    int32_t symbol = kNone;
  };
  int32_t symbols_end_ = 0;
  std::array<int32_t, 128> ascii_;
  std::vector<Slot> slots_;  // open addressing, a power of two
  std::array<uint64_t, 128 * 128 / 64> ascii_pairs_{};
  std::vector<uint64_t> pairs_;
};

}  // namespace cutaway::text
