#include "text/tokenizer/bpe_merges.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "base/hash_mix.h"
#include "base/json.h"
#include "text/tokenizer/byte_level.h"
#include "trace/trace.h"

namespace cutaway::text {
namespace {

constexpr const char* kMerges = "tokenizer.ggml.merges";

Error bad_merge(size_t index, const std::string& merge, const std::string& why) {
  return {ErrorCode::kInvalidFile,
          fmt::format("{}[{}] is {}: {}", kMerges, index, to_text(Json(merge.substr(0, 80))), why),
          kMerges};
}

// The two halves of a merge, decoded one after another into `buffer`.
struct Halves {
  size_t left, right;  // bytes of each
};
Result<Halves> split_merge(size_t index, const std::string& merge, std::string& buffer) {
  // The space byte has another spelling in the alphabet, so that the first space is the separator.
  const size_t space = merge.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == merge.size()) {
    return bad_merge(index, merge, "a merge is two tokens with a space between them");
  }
  buffer.resize(merge.size());
  const std::string_view view = merge;
  const int64_t left = byte_level_decode(view.substr(0, space), buffer.data());
  const int64_t right =
      left < 0 ? -1 : byte_level_decode(view.substr(space + 1), buffer.data() + left);
  if (right < 0) return bad_merge(index, merge, "a character outside the byte-level alphabet");
  return Halves{static_cast<size_t>(left), static_cast<size_t>(right)};
}

constexpr uint64_t kFree = ~uint64_t{0};

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

bool is_special_text(const Vocabulary& vocabulary, const std::string& merge) {
  std::string spelling = merge;
  spelling.erase(spelling.find(' '), 1);
  return vocabulary.find_special(spelling) >= 0;
}

}  // namespace

Merge MergeTable::find(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  for (size_t i = hash_pair(key) & mask_;; i = (i + 1) & mask_) {
    const Slot& slot = slots_[i];
    if (slot.key == key) return slot.merge;
    if (slot.key == kFree) return {};
  }
}

Result<MergeTable> MergeTable::read(const Metadata& metadata, const Vocabulary& vocabulary) {
  CUTAWAY_SPAN(span, "text::MergeTable::read");
  CUTAWAY_ASSIGN(const std::vector<std::string>* merges, metadata.strings(kMerges));
  if (merges->size() > (1u << 26)) {
    return Error{
        ErrorCode::kInvalidFile,
        fmt::format("{} has {} entries; at most 67108864 can be read", kMerges, merges->size()),
        kMerges};
  }
  MergeTable table;
  table.slots_.assign(std::bit_ceil(merges->size() * 2 + 1), Slot{});
  table.mask_ = table.slots_.size() - 1;
  std::string buffer;
  int32_t guess = 0;
  for (size_t i = 0; i < merges->size(); ++i) {
    const std::string& merge = (*merges)[i];
    CUTAWAY_ASSIGN(const Halves halves, split_merge(i, merge, buffer));
    const std::string_view whole(buffer.data(), halves.left + halves.right);
    const int32_t left = vocabulary.find_text(whole.substr(0, halves.left));
    const int32_t right = vocabulary.find_text(whole.substr(halves.left));
    // Lists are nearly always in the order of the ids: look there first.
    const bool guessed = !vocabulary.has_duplicates() && guess < vocabulary.size() &&
                         vocabulary.is_text(guess) && vocabulary.bytes(guess) == whole;
    const int32_t id = guessed ? guess : vocabulary.find_text(whole);
    if (left < 0 || right < 0) {
      if (is_special_text(vocabulary, merge)) continue;
      return bad_merge(
          i, merge,
          fmt::format("its {} part is not in tokenizer.ggml.tokens", left < 0 ? "left" : "right"));
    }
    if (id < 0) {
      if (is_special_text(vocabulary, merge)) continue;
      return bad_merge(i, merge, "the merged token is not in tokenizer.ggml.tokens");
    }
    guess = id + 1;
    const Merge made{static_cast<uint32_t>(i), id};
    const uint64_t key = pair_key(left, right);
    size_t at = hash_pair(key) & table.mask_;
    while (table.slots_[at].key != kFree && table.slots_[at].key != key)
      at = (at + 1) & table.mask_;
    if (table.slots_[at].key == kFree) ++table.size_;
    table.slots_[at] = {key, made};  // of two equal merges the later counts, as in `tokenizers`
    if (halves.left == 1 && halves.right == 1) {
      table.byte_pairs_[static_cast<size_t>(static_cast<uint8_t>(whole[0])) << 8 |
                        static_cast<uint8_t>(whole[1])] = made;
    }
  }
  CUTAWAY_OUT(span, "merges", table.size());
  return table;
}

namespace {

constexpr size_t kShort = 48;  // bytes up to which a scan beats the queue

// Merge the pair of the lowest rank, the leftmost among equals, until none is left: by looking at
// all pairs each time.
void merge_short(const MergeTable& merges, std::string_view word, Bpe::Scratch& scratch,
                 std::vector<MadeMerge>* made) {
  std::vector<Part>& parts = scratch.parts;
  size_t n = parts.size();
  Merge pairs[kShort];
  const auto find = [&](size_t i) { return merges.find(parts[i].id, parts[i + 1].id); };
  for (size_t i = 0; i + 1 < n; ++i) {
    pairs[i] = merges.find_bytes(static_cast<uint8_t>(word[i]), static_cast<uint8_t>(word[i + 1]));
  }
  scratch.operations += n;
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    scratch.operations += n;
    if (!pairs[best].exists()) break;
    if (made) {
      made->push_back(
          {pairs[best].rank, best ? parts[best - 1].end : 0, parts[best].end, parts[best + 1].end});
    }
    parts[best] = {pairs[best].id, parts[best + 1].end};
    for (size_t i = best + 1; i + 1 < n; ++i) parts[i] = parts[i + 1];
    for (size_t i = best + 1; i + 2 < n; ++i) pairs[i] = pairs[i + 1];
    --n;
    if (best > 0) pairs[best - 1] = find(best - 1);
    if (best + 1 < n) pairs[best] = find(best);
  }
  parts.resize(n);
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
    const Merge merge = merges.find(parts[i].id, parts[j].id);
    if (!merge.exists()) return;
    heap.push_back(static_cast<uint64_t>(merge.rank) << 32 | i);
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
    if (parts[i].id < 0 || scratch.next[i] == kNone) continue;  // merged away since
    const uint32_t j = scratch.next[i];
    const Merge merge = merges.find(parts[i].id, parts[j].id);
    if (merge.rank != rank) continue;  // a part of the pair has changed since
    if (made) {
      const uint32_t before = scratch.previous[i];
      made->push_back({rank, before == kNone ? 0 : parts[before].end, parts[i].end, parts[j].end});
    }
    parts[i] = {merge.id, parts[j].end};
    parts[j].id = -1;
    const uint32_t after = scratch.next[j];
    scratch.next[i] = after;
    if (after != kNone) scratch.previous[after] = i;
    if (scratch.previous[i] != kNone) offer(scratch.previous[i]);
    offer(i);
  }
  std::erase_if(parts, [](const Part& part) { return part.id < 0; });
}

}  // namespace

Bpe::Bpe(std::shared_ptr<const Vocabulary> vocabulary, MergeTable merges, bool ignore_merges)
    : vocabulary_(std::move(vocabulary)),
      merges_(std::move(merges)),
      ignore_merges_(ignore_merges),
      whole_(new std::atomic<uint8_t>[static_cast<size_t>(vocabulary_->size())]()) {
  CUTAWAY_SPAN(span, "text::Bpe::Bpe", "merges", merges_.size(), "ignore_merges", ignore_merges);
}

Result<const std::vector<Part>*> Bpe::encode(std::string_view word, bool drop, Scratch& scratch,
                                             std::vector<MadeMerge>* made, size_t& bad_byte) const {
  std::vector<Part>& parts = scratch.parts;
  parts.clear();
  // The token that is the whole word, if merging is known to end there.
  const bool fits = word.size() <= vocabulary_->longest_text();
  const int32_t whole = fits ? vocabulary_->find_text(word) : -1;
  const bool taken =
      whole >= 0 &&
      (ignore_merges_ ||
       (!made && whole_[static_cast<size_t>(whole)].load(std::memory_order_relaxed) == kWhole));
  if (taken) {
    parts.push_back({whole, static_cast<uint32_t>(word.size())});
    ++scratch.operations;
    return &parts;
  }
  if (word.size() >= std::numeric_limits<uint32_t>::max()) {
    return Error{ErrorCode::kTooLarge, "a single word of 4 GiB or more"};
  }
  std::string_view text = word;
  for (size_t i = 0; i < word.size(); ++i) {
    const int32_t id = vocabulary_->byte_token(static_cast<uint8_t>(word[i]));
    if (id < 0) {
      if (drop) {
        text = {};
        continue;
      }
      bad_byte = i;
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("byte 0x{:02X} has no token in this vocabulary",
                               static_cast<uint8_t>(word[i]))};
    }
    parts.push_back({id, static_cast<uint32_t>(i + 1)});
  }
  if (text.empty()) {
    scratch.kept.clear();
    for (const Part& part : parts) scratch.kept += word[part.end - 1];
    text = scratch.kept;
  }
  if (parts.size() <= kShort) {
    merge_short(merges_, text, scratch, made);
  } else {
    merge_long(merges_, scratch, made);
  }
  if (whole >= 0) {
    const bool same = parts.size() == 1 && parts[0].id == whole;
    whole_[static_cast<size_t>(whole)].store(same ? kWhole : kNotWhole, std::memory_order_relaxed);
  }
  return &parts;
}

}  // namespace cutaway::text
