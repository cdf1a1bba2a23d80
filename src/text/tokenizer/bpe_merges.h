// Byte-pair encoding of one pre-token: the merge table and the algorithm.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash_mix.h"
#include "base/result.h"
#include "text/tokenizer/characters.h"
#include "text/tokenizer/vocabulary.h"

namespace cutaway::text {

struct Merge {
  uint32_t rank = std::numeric_limits<uint32_t>::max();  // position in the file's list
  int32_t id = -1;                                       // the token that the pair becomes
  bool exists() const { return id >= 0; }
};

// (left id, right id) → merge, in one flat table.
class MergeTable {
 public:
  // tokenizer.ggml.merges. Errors kInvalidFile name the merge that is not of two tokens making a
  // third. A merge that would make a control token is left out: text never becomes one.
  static Result<MergeTable> read(const Metadata& metadata, const Vocabulary& vocabulary);
  // tokenizer.ggml.scores: any two symbols that make a token may merge, the higher its score, the
  // sooner. Errors kInvalidFile: scores that are not as many as the tokens, or not finite.
  static Result<MergeTable> from_scores(const Metadata& metadata, const Vocabulary& vocabulary,
                                        const Characters& characters);

  Merge find(int32_t left, int32_t right) const;
  // The same for two tokens that are one byte each: no hash.
  Merge find_bytes(uint8_t left, uint8_t right) const {
    return byte_pairs_[static_cast<size_t>(left) << 8 | right];
  }
  size_t size() const { return size_; }

 private:
  void reserve(size_t merges);
  static constexpr uint64_t kFree = ~uint64_t{0};
  static uint64_t pair_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  void put(int32_t left, int32_t right, Merge merge) {
    const uint64_t key = pair_key(left, right);
    size_t at = hash_pair(key) & mask_;
    while (slots_[at].key != kFree && slots_[at].key != key) at = (at + 1) & mask_;
    if (slots_[at].key == kFree) ++size_;
    slots_[at] = {key, merge};
  }

  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  std::vector<Slot> slots_ = std::vector<Slot>(1);
  std::vector<Merge> byte_pairs_ = std::vector<Merge>(65536);
  size_t mask_ = 0;
  size_t size_ = 0;
};

// A token inside a word and where it ends (in bytes from the word's begin).
struct Part {
  int32_t id;
  uint32_t end;
};

// One merge as it was made.
struct MadeMerge {
  uint32_t rank;
  uint32_t begin, middle, end;  // bytes from the word's begin
};

class Bpe {
 public:
  // Byte-level where `characters` is null; else SentencePiece's: a character that becomes no token
  // is the tokens of its bytes, or `unknown` (−1: there is none), one for a run of them.
  Bpe(std::shared_ptr<const Vocabulary> vocabulary, MergeTable merges, bool ignore_merges,
      std::shared_ptr<const Characters> characters = nullptr, int32_t unknown = -1);

  // Scratch of one caller, so that a word allocates nothing.
  struct Scratch {
    std::vector<Part> parts, spelled;
    std::vector<uint32_t> next, previous;
    std::vector<uint64_t> heap;
    std::string kept;         // the word without the bytes that were dropped
    uint64_t operations = 0;  // pairs looked at so far: what near-linear is about
  };

  // The tokens of a word. The result lives in `scratch` until the next call. `made`, when given,
  // gets the merges in order. Error kInvalidArgument when a byte has no token, nor is there an
  // unknown one; its offset in the word is then in `bad_byte` (with `drop`, such bytes are left out
  // instead). A word of 4 GiB or more is an error too.
  Result<const std::vector<Part>*> encode(std::string_view word, bool drop, Scratch& scratch,
                                          std::vector<MadeMerge>* made, size_t& bad_byte) const;

 private:
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::shared_ptr<const Characters> characters_;
  int32_t unknown_;
  MergeTable merges_;
  bool ignore_merges_;
  // For each token: does its own text merge to exactly itself? Found out when first asked, so that
  // most words are one look-up. 0: not known yet.
  enum : uint8_t { kNotKnown, kWhole, kNotWhole };
  std::unique_ptr<std::atomic<uint8_t>[]> whole_;
};

}  // namespace cutaway::text
