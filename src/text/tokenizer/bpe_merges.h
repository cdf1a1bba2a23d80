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

#include "base/result.h"
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
  // Errors kInvalidFile name the merge that is not of two tokens making a third. A merge that would
  // make a control token is left out: text never becomes one.
  static Result<MergeTable> read(const Metadata& metadata, const Vocabulary& vocabulary);

  Merge find(int32_t left, int32_t right) const;
  // The same for two tokens that are one byte each: no hash.
  Merge find_bytes(uint8_t left, uint8_t right) const {
    return byte_pairs_[static_cast<size_t>(left) << 8 | right];
  }
  size_t size() const { return size_; }

 private:
  struct Slot {
    uint64_t key = ~uint64_t{0};  // that: free
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
  Bpe(std::shared_ptr<const Vocabulary> vocabulary, MergeTable merges, bool ignore_merges);

  // Scratch of one caller, so that a word allocates nothing.
  struct Scratch {
    std::vector<Part> parts;
    std::vector<uint32_t> next, previous;
    std::vector<uint64_t> heap;
    std::string kept;         // the word without the bytes that were dropped
    uint64_t operations = 0;  // pairs looked at so far: what near-linear is about
  };

  // The tokens of a word. The result lives in `scratch` until the next call. `made`, when given,
  // gets the merges in order. Error kInvalidArgument when a byte has no token; its offset in the
  // word is then in `bad_byte` (with `drop`, such bytes are left out instead). A word of 4 GiB or
  // more is an error too.
  Result<const std::vector<Part>*> encode(std::string_view word, bool drop, Scratch& scratch,
                                          std::vector<MadeMerge>* made, size_t& bad_byte) const;

 private:
  std::shared_ptr<const Vocabulary> vocabulary_;
  MergeTable merges_;
  bool ignore_merges_;
  // For each token: does its own text merge to exactly itself? Found out when first asked, so that
  // most words are one look-up. 0: not known yet.
  enum : uint8_t { kNotKnown, kWhole, kNotWhole };
  std::unique_ptr<std::atomic<uint8_t>[]> whole_;
};

}  // namespace cutaway::text
