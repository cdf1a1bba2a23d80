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

// Merge the pair of the lowest rank, the leftmost among equals, until none is left: by looking at
// all pairs each time. `word` has one byte a part, or is empty where parts are characters.
void merge_short(const MergeTable& merges, std::string_view word, Bpe::Scratch& scratch,
                 std::vector<MadeMerge>* made) {
  std::vector<Part>& parts = scratch.parts;
  size_t n = parts.size();
  Merge pairs[kShort];
  const auto find = [&](size_t i) { return merges.find(parts[i].id, parts[i + 1].id); };
  for (size_t i = 0; i + 1 < n; ++i) {
    pairs[i] = word.empty() ? find(i)
                            : merges.find_bytes(static_cast<uint8_t>(word[i]),
                                                static_cast<uint8_t>(word[i + 1]));
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
    if (parts[i].id == kMergedAway || scratch.next[i] == kNone) continue;
    const uint32_t j = scratch.next[i];
    const Merge merge = merges.find(parts[i].id, parts[j].id);
    if (merge.rank != rank) continue;  // a part of the pair has changed since
    if (made) {
      const uint32_t before = scratch.previous[i];
      made->push_back({rank, before == kNone ? 0 : parts[before].end, parts[i].end, parts[j].end});
    }
    parts[i] = {merge.id, parts[j].end};
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
  bool dropped = false;
  for (size_t i = 0; i < word.size(); ++i) {
    const int32_t id = vocabulary.byte_token(static_cast<uint8_t>(word[i]));
    if (id >= 0) {
      parts.push_back({id, static_cast<uint32_t>(i + 1)});
    } else if (drop) {
      dropped = true;
    } else {
      bad_byte = i;
      return no_token(static_cast<uint8_t>(word[i]));
    }
  }
  if (!dropped) return word;
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
  std::string_view bytes;
  bool all_tokens = true;
  if (characters_) {
    all_tokens = split_characters(*vocabulary_, *characters_, word, scratch);
  } else {
    CUTAWAY_ASSIGN(bytes, split_bytes(*vocabulary_, word, drop, scratch, bad_byte));
  }
  if (parts.size() <= kShort) {
    merge_short(merges_, bytes, scratch, made);
  } else {
    merge_long(merges_, scratch, made);
  }
  if (!all_tokens) {
    CUTAWAY_TRY(spell_out(*vocabulary_, unknown_, word, drop, scratch, bad_byte));
  }
  if (whole >= 0) {
    const bool same = parts.size() == 1 && parts[0].id == whole;
    whole_[static_cast<size_t>(whole)].store(same ? kWhole : kNotWhole, std::memory_order_relaxed);
  }
  return &parts;
}

}  // namespace cutaway::text
