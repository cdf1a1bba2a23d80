#include "text/tokenizer/bpe_merges.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/utf8.h"
#include "trace/trace.h"

namespace cutaway::text {
namespace {

constexpr int32_t kMergedAway = -1;
constexpr size_t kShort = 48;  // bytes up to which a scan beats the queue

// A vector would be loaded from numbers that were just stored one by one, which the processor can
// only do once they have reached its cache.
#if defined(__GNUC__) && !defined(__clang__)
#define CUTAWAY_NO_VECTORS __attribute__((optimize("no-tree-vectorize")))
#else
#define CUTAWAY_NO_VECTORS
#endif

// Merge the pair of the lowest rank, the leftmost among equals, until none is left: by looking at
// all pairs each time. `word` has one byte a part, or is empty where parts are characters.
//
// Parts keep the place at which they begin; next[i] is the place where part i ends. pairs[i] holds
// rank and place of the merge of part i with the next, so that the least of all is the one to make.
template <bool kKeepMade>
CUTAWAY_NO_VECTORS void merge_short(const MergeTable& merges, std::string_view word,
                                    Bpe::Scratch& scratch, std::vector<MadeMerge>* made) {
  constexpr int kPlaceBits = 6;
  static_assert(kShort <= 1 << kPlaceBits);
  constexpr uint32_t kNothing = MergeTable::kMaxMerges << kPlaceBits;
  Part* const parts = scratch.parts.data();
  const uint32_t n = static_cast<uint32_t>(scratch.parts.size());
  uint32_t pairs[kShort + 1];
  uint8_t next[kShort], previous[kShort];
  for (uint32_t i = 0; i < n; ++i) {
    next[i] = static_cast<uint8_t>(i + 1);
    previous[i] = static_cast<uint8_t>(i - 1);
  }
  for (uint32_t i = 0; i + 1 < n; ++i) {
    const uint32_t rank = word.empty() ? merges.rank(parts[i].id, parts[i + 1].id)
                                       : merges.rank_of_bytes(static_cast<uint8_t>(word[i]),
                                                              static_cast<uint8_t>(word[i + 1]));
    pairs[i] = rank << kPlaceBits | i;
  }
  uint64_t operations = n;
  // Pairs from `last` on are none: the last part has no next.
  for (uint32_t last = n > 0 ? n - 1 : 0;;) {
    uint32_t best = kNothing, other = kNothing;
    pairs[last] = kNothing;
    for (uint32_t i = 0; i < last; i += 2) {
      best = std::min(best, pairs[i]);
      other = std::min(other, pairs[i + 1]);
    }
    best = std::min(best, other);
    operations += n;
    if (best >= kNothing) break;
    const uint32_t i = best & ((1 << kPlaceBits) - 1), rank = best >> kPlaceBits;
    const uint32_t middle = next[i], end = next[middle];
    if constexpr (kKeepMade) {
      made->push_back(
          {rank, i > 0 ? parts[i - 1].end : 0, parts[middle - 1].end, parts[end - 1].end});
    }
    const int32_t id = merges.made(parts[i].id, parts[middle].id, rank);
    parts[i].id = id;
    next[i] = static_cast<uint8_t>(end);
    pairs[middle] = kNothing;
    // Both are asked of memory before either is waited for.
    const uint32_t before = i > 0 ? previous[i] : i;
    const MergeTable::Asked left = merges.ask(parts[before].id, id);
    if (end < n) {
      previous[end] = static_cast<uint8_t>(i);
      const MergeTable::Asked right = merges.ask(id, parts[end].id);
      pairs[i] = merges.rank(right) << kPlaceBits | i;
    } else {
      last = i;
    }
    if (i > 0) pairs[before] = merges.rank(left) << kPlaceBits | before;
  }
  scratch.operations += operations;
  size_t out = 0;
  for (uint32_t i = 0; i < n; i = next[i]) parts[out++] = {parts[i].id, parts[next[i] - 1u].end};
  scratch.parts.resize(out);
}

// The same order from a queue of (rank, position) over a linked list: n log n.
void merge_long(const MergeTable& merges, Bpe::Scratch& scratch, std::vector<MadeMerge>* made) {
  std::vector<Part>& parts = scratch.parts;
  const uint32_t n = static_cast<uint32_t>(parts.size());
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  scratch.next.resize(n);
  scratch.previous.resize(n);
  std::vector<uint64_t>& heap = scratch.heap;
  heap.clear();
  const auto offer = [&](uint32_t i) {
    ++scratch.operations;
    const uint32_t j = scratch.next[i];
    if (j == kNone) return;
    const uint32_t rank = merges.rank(parts[i].id, parts[j].id);
    if (rank >= MergeTable::kMaxMerges) return;
    heap.push_back(static_cast<uint64_t>(rank) << 32 | i);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (uint32_t i = 0; i < n; ++i) {
    scratch.next[i] = i + 1 < n ? i + 1 : kNone;
    scratch.previous[i] = i > 0 ? i - 1 : kNone;
  }
  for (uint32_t i = 0; i + 1 < n; ++i) offer(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    ++scratch.operations;
    const uint32_t i = static_cast<uint32_t>(top);
    const uint32_t rank = static_cast<uint32_t>(top >> 32);
    if (parts[i].id == kMergedAway || scratch.next[i] == kNone) continue;
    const uint32_t j = scratch.next[i];
    if (merges.rank(parts[i].id, parts[j].id) != rank)
      continue;  // a part of the pair has changed since
    if (made) {
      const uint32_t before = scratch.previous[i];
      made->push_back({rank, before == kNone ? 0 : parts[before].end, parts[i].end, parts[j].end});
    }
    parts[i] = {merges.made(parts[i].id, parts[j].id, rank), parts[j].end};
    parts[j].id = kMergedAway;
    const uint32_t after = scratch.next[j];
    scratch.next[i] = after;
    if (after != kNone) scratch.previous[after] = i;
    if (scratch.previous[i] != kNone) offer(scratch.previous[i]);
    offer(i);
  }
  std::erase_if(parts, [](const Part& part) { return part.id == kMergedAway; });
}

}  // namespace

Bpe::Bpe(std::shared_ptr<const Vocabulary> vocabulary, MergeTable merges, bool ignore_merges,
         std::shared_ptr<const Characters> characters, int32_t unknown)
    : vocabulary_(std::move(vocabulary)),
      characters_(std::move(characters)),
      unknown_(unknown),
      merges_(std::move(merges)),
      ignore_merges_(ignore_merges),
      whole_(new std::atomic<uint8_t>[static_cast<size_t>(vocabulary_->size())]()) {
  CUTAWAY_SPAN(span, "text::Bpe::Bpe", "merges", merges_.size(), "ignore_merges", ignore_merges);
}

namespace {

Error no_token(uint8_t byte) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("byte 0x{:02X} has no token in this vocabulary", byte)};
}

// One part a byte; the bytes that have a token.
Result<std::string_view> split_bytes(const Vocabulary& vocabulary, std::string_view word, bool drop,
                                     Bpe::Scratch& scratch, size_t& bad_byte) {
  std::vector<Part>& parts = scratch.parts;
  parts.resize(word.size());
  size_t n = 0;
  for (size_t i = 0; i < word.size(); ++i) {
    const int32_t id = vocabulary.byte_token(static_cast<uint8_t>(word[i]));
    if (id >= 0) {
      parts[n++] = {id, static_cast<uint32_t>(i + 1)};
    } else if (!drop) {
      bad_byte = i;
      return no_token(static_cast<uint8_t>(word[i]));
    }
  }
  if (n == word.size()) return word;
  parts.resize(n);
  scratch.kept.clear();
  for (const Part& part : parts) scratch.kept += word[part.end - 1];
  return std::string_view(scratch.kept);
}

// One part a character; is each of them a token?
bool split_characters(const Vocabulary& vocabulary, const Characters& characters,
                      std::string_view word, Bpe::Scratch& scratch) {
  bool all = true;
  size_t length = 0;
  for (size_t pos = 0; pos < word.size();) {
    length = 1;
    int32_t code = static_cast<uint8_t>(word[pos]);
    if (code >= 0x80) code = utf8_decode(word, pos, length);
    pos += length;
    const int32_t symbol = characters.symbol(code);
    all &= symbol >= 0 && symbol < vocabulary.size();
    scratch.parts.push_back({symbol, static_cast<uint32_t>(pos)});
  }
  return all;
}

// Characters that became part of no token: the tokens of their bytes, or the unknown token.
Status spell_out(const Vocabulary& vocabulary, int32_t unknown, std::string_view word, bool drop,
                 Bpe::Scratch& scratch, size_t& bad_byte) {
  std::vector<Part>& out = scratch.spelled;
  out.clear();
  uint32_t begin = 0;
  for (const Part& part : scratch.parts) {
    const std::string_view text = word.substr(begin, part.end - begin);
    if (part.id >= 0 && part.id < vocabulary.size()) {
      out.push_back(part);
    } else if (std::all_of(text.begin(), text.end(), [&](char c) {
                 return vocabulary.byte_token(static_cast<uint8_t>(c)) >= 0;
               })) {
      for (size_t i = 0; i < text.size(); ++i) {
        out.push_back({vocabulary.byte_token(static_cast<uint8_t>(text[i])),
                       begin + static_cast<uint32_t>(i) + 1});
      }
    } else if (unknown >= 0) {
      if (!out.empty() && out.back().id == unknown && out.back().end == begin) out.pop_back();
      out.push_back({unknown, part.end});
    } else if (!drop) {
      bad_byte = begin;
      return no_token(static_cast<uint8_t>(text[0]));
    }
    begin = part.end;
  }
  std::swap(out, scratch.parts);
  return {};
}

}  // namespace

namespace {

// The parents' texts, each of which merges to its token by itself, side by side: does a merge of
// the two come before their own? From the end on back: the two parts that meet where the texts do,
// and the ranks at which each of them becomes part of something else. The one that was made later
// was not there before; its own half was.
bool merge_elsewhere(const MergeTable& merges, const MergeTable::Parents& parents) {
  int32_t left = parents.left, right = parents.right;
  uint32_t left_end = parents.rank, right_end = parents.rank;
  for (;;) {
    const MergeTable::Parents& of_left = *merges.parents(left);
    const MergeTable::Parents& of_right = *merges.parents(right);
    const bool made_left = of_left.rank < MergeTable::kMaxMerges;
    const bool made_right = of_right.rank < MergeTable::kMaxMerges;
    if (!made_left && !made_right) return false;
    // Of merges of one rank, the leftmost is made first.
    if (made_left && (!made_right || of_left.rank > of_right.rank)) {
      left_end = of_left.rank;
      left = of_left.right;
    } else {
      right_end = of_right.rank;
      right = of_right.left;
    }
    const uint32_t across = merges.rank(left, right);
    if (across < left_end && across <= right_end) return true;
  }
}

}  // namespace

// A token comes out whole if both of its parents do, and neither loses a part to the other before
// they merge. False: it does not, or merging has to tell.
bool Bpe::learn_whole(int32_t id, int depth) const {
  constexpr int kMostDepth = 32;
  std::atomic<uint8_t>& state = whole_[static_cast<size_t>(id)];
  const uint8_t known = state.load(std::memory_order_relaxed);
  if (known != kNotKnown) return known == kWhole;
  const MergeTable::Parents* parents = merges_.parents(id);
  if (parents == nullptr || depth == kMostDepth) return false;
  bool whole = parents->rank == MergeTable::kSymbol;
  if (parents->rank < MergeTable::kMaxMerges) {
    for (const int32_t part : {parents->left, parents->right}) {
      if (learn_whole(part, depth + 1)) continue;
      const uint8_t told = whole_[static_cast<size_t>(part)].load(std::memory_order_relaxed);
      if (told == kNotKnown) return false;
      state.store(kNotWhole, std::memory_order_relaxed);
      return false;
    }
    whole = !merge_elsewhere(merges_, *parents);
  }
  state.store(whole ? kWhole : kNotWhole, std::memory_order_relaxed);
  return whole;
}

Result<const std::vector<Part>*> Bpe::merge(std::string_view word, const Whole& whole, bool drop,
                                            Scratch& scratch, std::vector<MadeMerge>* made,
                                            size_t& bad_byte) const {
  std::vector<Part>& parts = scratch.parts;
  parts.clear();
  if (word.size() >= std::numeric_limits<uint32_t>::max()) {
    return Error{ErrorCode::kTooLarge, "a single word of 4 GiB or more"};
  }
  std::string_view bytes;
  bool all_tokens = true;
  if (characters_) {
    all_tokens = split_characters(*vocabulary_, *characters_, word, scratch);
  } else {
    CUTAWAY_ASSIGN(bytes, split_bytes(*vocabulary_, word, drop, scratch, bad_byte));
  }
  if (parts.size() <= kShort) {
    if (made) {
      merge_short<true>(merges_, bytes, scratch, made);
    } else {
      merge_short<false>(merges_, bytes, scratch, nullptr);
    }
  } else {
    merge_long(merges_, scratch, made);
  }
  if (!all_tokens) {
    CUTAWAY_TRY(spell_out(*vocabulary_, unknown_, word, drop, scratch, bad_byte));
  }
  if (whole.id >= 0) learn(whole.id, parts.size() == 1 && parts[0].id == whole.id);
  return &parts;
}

}  // namespace cutaway::text
