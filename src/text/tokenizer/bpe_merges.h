// Byte-pair encoding of one pre-token: the merge table and the algorithm.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash_mix.h"
#include "base/large_memory.h"
#include "base/result.h"
#include "text/tokenizer/characters.h"
#include "text/tokenizer/vocabulary.h"

namespace cutaway::text {

// (left id, right id) → merge, in one flat table of eight bytes each: what is looked up lies all
// over it, so that its size decides how fast that is.
class MergeTable {
 public:
  // tokenizer.ggml.merges. Errors kInvalidFile name the merge that is not of two tokens making a
  // third. A merge that would make a control token is left out: text never becomes one.
  static Result<MergeTable> read(const Metadata& metadata, const Vocabulary& vocabulary);
  // tokenizer.ggml.scores: any two symbols that make a token may merge, the higher its score, the
  // sooner. Errors kInvalidFile: scores that are not as many as the tokens, or not finite.
  static Result<MergeTable> from_scores(const Metadata& metadata, const Vocabulary& vocabulary,
                                        const Characters& characters);

  static constexpr int kRankBits = 22, kIdBits = 21;
  static constexpr uint32_t kMaxMerges = 1u << kRankBits;
  static constexpr int32_t kMaxSymbols = (1 << kIdBits) - 2;  // −1 and −2 are nobody's keys

  // The rank of the merge of two symbols, its position in the file's list: the lower, the sooner.
  // At least kMaxMerges where there is none (a negative symbol is no symbol).
  uint32_t rank(int32_t left, int32_t right) const {
    const uint64_t wanted = pair_key(left, right) << kRankBits;
    return rank(Asked{wanted, hash_of(wanted)});
  }
  // The same in two steps, so that memory can be asked for more than one pair at a time.
  struct Asked {
    uint64_t wanted, hash;
  };
  Asked ask(int32_t left, int32_t right) const {
    const uint64_t wanted = pair_key(left, right) << kRankBits;
    const Asked asked{wanted, hash_of(wanted)};
    __builtin_prefetch(&filter_[asked.hash >> filter_shift_]);
    __builtin_prefetch(&slots_[first_slot(asked.hash)]);
    return asked;
  }
  // False: the pair has no merge. (True nearly always means that it has.)
  bool may_hold(const Asked& asked) const { return may_hold(asked.hash); }
  uint32_t rank(const Asked& asked) const {
    const uint64_t wanted = asked.wanted;
    if (!may_hold(asked.hash)) return kMaxMerges;
    for (size_t at = first_slot(asked.hash);; at = (at + kWay) & mask_) {
      // What is left of a slot with this key is its rank, of any other more than any rank.
      const uint64_t* slots = &slots_[at];
      const uint64_t first = std::min(slots[0] ^ wanted, slots[1] ^ wanted);
      const uint64_t second = std::min(slots[2] ^ wanted, slots[3] ^ wanted);
      const uint64_t least = std::min({first, second, uint64_t{kMaxMerges}});
      if (least < kMaxMerges || slots[kWay - 1] == kFree) return static_cast<uint32_t>(least);
    }
  }
  // The same for two tokens that are one byte each: no hash.
  uint32_t rank_of_bytes(uint8_t left, uint8_t right) const {
    return byte_ranks_[static_cast<size_t>(left) << 8 | right];
  }
  // The token that the pair becomes. Precondition: rank is its rank, below kMaxMerges.
  int32_t made(int32_t left, int32_t right, uint32_t rank) const {
    if (first_id_ >= 0) return first_id_ + static_cast<int32_t>(rank);
    return ids_[ids_by_rank_ ? rank : slot_of(pair_key(left, right))];
  }
  size_t size() const { return size_; }

  // The merge that makes a token. Rank kSymbol: none has to, it is a byte; kNever: none does.
  static constexpr uint32_t kSymbol = kMaxMerges, kNever = kMaxMerges + 1;
  struct Parents {
    int32_t left = -1, right = -1;
    uint32_t rank = kNever;
  };
  // Of a byte-level list in which one merge makes each token, out of what earlier ones make: then
  // merges are made in the order of their ranks. Null for other lists.
  const Parents* parents(int32_t id) const {
    return parents_.empty() ? nullptr : &parents_[static_cast<size_t>(id)];
  }

 private:
  void reserve(size_t merges);
  void read_parents(const Vocabulary& vocabulary, std::span<const Parents> merges,
                    std::span<const int32_t> ids);
  static constexpr uint64_t kFree = ~uint64_t{0};
  static uint64_t pair_key(int32_t left, int32_t right) {
    constexpr uint64_t kMask = (uint64_t{1} << kIdBits) - 1;
    return (static_cast<uint64_t>(left) & kMask) << kIdBits |
           (static_cast<uint64_t>(right) & kMask);
  }
  // Slots are looked at four at a time, and are taken from the first on: where the last is free,
  // so are all others that come after.
  static constexpr size_t kWay = 4;
  static uint64_t hash_of(uint64_t wanted) { return mix64(wanted, 0x9E3779B97F4A7C15u); }
  size_t first_slot(uint64_t hash) const { return hash * kWay & mask_; }
  // Most pairs that are asked for are none: two bits of a word of the filter, which is small enough
  // to stay in a cache that the table does not fit into, nearly always say so.
  bool may_hold(uint64_t hash) const {
    const uint64_t word = filter_[hash >> filter_shift_];
    return (word >> (hash >> 24 & 63) & word >> (hash >> 30 & 63) & 1) != 0;
  }
  // Where the key is, or the free slot where it would be.
  size_t slot_of(uint64_t key) const {
    size_t at = first_slot(hash_of(key << kRankBits));
    while (slots_[at] != kFree && slots_[at] >> kRankBits != key) at = (at + 1) & mask_;
    return at;
  }
  // Precondition: symbols below kMaxSymbols, rank below kMaxMerges, room.
  size_t put(int32_t left, int32_t right, uint32_t rank) {
    const uint64_t key = pair_key(left, right);
    const size_t at = slot_of(key);
    if (slots_[at] == kFree) ++size_;
    const uint64_t hash = hash_of(key << kRankBits);
    filter_[hash >> filter_shift_] |= uint64_t{1} << (hash >> 24 & 63) | uint64_t{1}
                                                                             << (hash >> 30 & 63);
    slots_[at] = key << kRankBits | rank;
    return at;
  }

  LargeVector<uint64_t> slots_ = LargeVector<uint64_t>(kWay, kFree);  // key and rank
  // Of the merged token: by rank where each rank makes one token, else by slot.
  LargeVector<int32_t> ids_;
  bool ids_by_rank_ = true;
  std::vector<uint64_t> filter_ = std::vector<uint64_t>(2);
  int filter_shift_ = 63;
  std::vector<uint32_t> byte_ranks_ = std::vector<uint32_t>(65536, kMaxMerges);
  std::vector<Parents> parents_;  // by token, or empty
  int32_t first_id_ = -1;         // where every merge's token is first_id_ + rank; −1: not so
  size_t mask_ = kWay - 1;
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
  // The token that is the whole word (−1: none), and whether it is known that merging ends there.
  struct Whole {
    int32_t id = -1;
    bool taken = false;
  };
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
                                          std::vector<MadeMerge>* made, size_t& bad_byte) const {
    Whole whole = find_whole(word);
    if (made && !ignore_merges_) whole.taken = false;  // to have the merges, they are made again
    if (!whole.taken) return merge(word, whole, drop, scratch, made, bad_byte);
    scratch.parts.assign(1, {whole.id, static_cast<uint32_t>(word.size())});
    ++scratch.operations;
    return &scratch.parts;
  }
  // A word that waits for others, and for memory.
  struct Waiting {
    std::string_view word;
    uint32_t hash = 0;  // of those that can be a token
  };
  // Asks the memory for what find_whole(word) will look at first.
  Waiting prefetch(std::string_view word) const {
    if (word.size() < 2 || word.size() > vocabulary_->longest_text()) return {word};
    const uint32_t hash = hash_bytes(word);
    vocabulary_->prefetch(hash);
    return {word, hash};
  }
  // Once that is there, for the rest. Precondition: at most kTogether words.
  static constexpr size_t kTogether = 16;
  void prefetch_rest(std::span<const Waiting> words) const {
    std::array<int32_t, kTogether> ids;
    for (size_t i = 0; i < words.size(); ++i) {
      ids[i] = vocabulary_->prefetch_token(words[i].word, words[i].hash);
    }
    for (size_t i = 0; i < words.size(); ++i) {
      if (ids[i] >= 0) vocabulary_->prefetch_bytes(ids[i]);
    }
  }
  // The two halves of encode. Where find_whole(word).taken, its id alone is the answer.
  Whole find_whole(std::string_view word) const { return find_whole({word, hash_bytes(word)}); }
  Whole find_whole(const Waiting& waiting) const {
    const std::string_view word = waiting.word;
    if (word.size() == 1 && !characters_) {
      const int32_t id = vocabulary_->byte_token(static_cast<uint8_t>(word[0]));
      return {id, id >= 0};
    }
    if (word.size() > vocabulary_->longest_text()) return {};
    const int32_t id = vocabulary_->find_text(word, waiting.hash);
    if (id < 0) return {};
    if (ignore_merges_) return {id, true};
    const uint8_t known = whole_[static_cast<size_t>(id)].load(std::memory_order_relaxed);
    return {id, known == kWhole || (known == kNotKnown && learn_whole(id, 0))};
  }
  Result<const std::vector<Part>*> merge(std::string_view word, const Whole& whole, bool drop,
                                         Scratch& scratch, std::vector<MadeMerge>* made,
                                         size_t& bad_byte) const;

  // Up to kTogether words, byte-level: find_whole of each, and the parts (count > 0) of those that
  // are not taken whole, have at most kLongest bytes, and a token for each of them. The rest is for
  // merge(). Counts `operations` as merge() does.
  struct Together {
    static constexpr size_t kLongest = 32;
    std::array<Whole, kTogether> whole;
    std::array<uint8_t, kTogether> count;
    std::array<std::array<Part, kLongest>, kTogether> parts;
  };
  void merge_together(std::span<const Waiting> words, Together& out, uint64_t& operations) const;

 private:
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::shared_ptr<const Characters> characters_;
  int32_t unknown_;
  MergeTable merges_;
  bool ignore_merges_;
  bool learn_whole(int32_t id, int depth) const;
  void learn(int32_t id, bool whole) const {
    whole_[static_cast<size_t>(id)].store(whole ? kWhole : kNotWhole, std::memory_order_relaxed);
  }

  // For each token: does its own text merge to exactly itself? Found out when first asked, so that
  // most words are one look-up. 0: not known yet.
  enum : uint8_t { kNotKnown, kWhole, kNotWhole };
  std::unique_ptr<std::atomic<uint8_t>[]> whole_;
};

}  // namespace cutaway::text
