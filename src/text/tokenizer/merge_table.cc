#include "text/tokenizer/bpe_merges.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/json.h"
#include "base/utf8.h"
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
Result<Halves> split_merge(size_t index, const std::string& merge, Spelling spelling,
                           std::string& buffer) {
  // Neither spelling has a space of its own, so that the first one is the separator.
  const size_t space = merge.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == merge.size()) {
    return bad_merge(index, merge, "a merge is two tokens with a space between them");
  }
  const std::string_view view = merge;
  if (spelling == Spelling::kSentencePiece) {
    const std::string left = without_space_marks(view.substr(0, space));
    buffer = left + without_space_marks(view.substr(space + 1));
    return Halves{left.size(), buffer.size() - left.size()};
  }
  buffer.resize(merge.size());
  const int64_t left = byte_level_decode(view.substr(0, space), buffer.data());
  const int64_t right =
      left < 0 ? -1 : byte_level_decode(view.substr(space + 1), buffer.data() + left);
  if (right < 0) return bad_merge(index, merge, "a character outside the byte-level alphabet");
  return Halves{static_cast<size_t>(left), static_cast<size_t>(right)};
}

bool is_special_text(const Vocabulary& vocabulary, const std::string& merge) {
  std::string spelling = merge;
  spelling.erase(spelling.find(' '), 1);
  if (vocabulary.spelling() == Spelling::kSentencePiece) spelling = without_space_marks(spelling);
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

void MergeTable::reserve(size_t merges) {
  CUTAWAY_SPAN(span, "text::MergeTable::reserve", "merges", merges);
  slots_.assign(std::bit_ceil(merges * 2 + 1), Slot{});
  mask_ = slots_.size() - 1;
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
  table.reserve(merges->size());
  std::string buffer;
  int32_t guess = 0;
  for (size_t i = 0; i < merges->size(); ++i) {
    const std::string& merge = (*merges)[i];
    CUTAWAY_ASSIGN(const Halves halves, split_merge(i, merge, vocabulary.spelling(), buffer));
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
    table.put(left, right, made);  // of two equal merges the later counts, as in `tokenizers`
    if (halves.left == 1 && halves.right == 1) {
      table.byte_pairs_[static_cast<size_t>(static_cast<uint8_t>(whole[0])) << 8 |
                        static_cast<uint8_t>(whole[1])] = made;
    }
  }
  CUTAWAY_OUT(span, "merges", table.size());
  return table;
}

namespace {

// For each token the place of its score among all that there are, the highest first.
Result<std::vector<uint32_t>> read_ranks(const Metadata& metadata, size_t count) {
  CUTAWAY_ASSIGN(const std::vector<double> scores, read_scores(metadata, count));
  std::vector<uint32_t> order(count), ranks(count);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  uint32_t rank = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i > 0 && scores[order[i]] != scores[order[i - 1]]) ++rank;
    ranks[order[i]] = rank;
  }
  return ranks;
}

}  // namespace

Result<MergeTable> MergeTable::from_scores(const Metadata& metadata, const Vocabulary& vocabulary,
                                           const Characters& characters) {
  CUTAWAY_SPAN(span, "text::MergeTable::from_scores");
  CUTAWAY_ASSIGN(const std::vector<uint32_t> ranks,
                 read_ranks(metadata, static_cast<size_t>(vocabulary.size())));
  const auto symbol = [&](std::string_view text) {
    size_t length = 0;
    const int32_t code = utf8_decode(text, 0, length);
    return length == text.size() ? characters.symbol(code) : vocabulary.find_text(text);
  };
  struct Found {
    int32_t left, right, id;
  };
  std::vector<Found> found;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary.bytes(id);
    if (!vocabulary.is_text(id) || vocabulary.find_text(text) != id) continue;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if ((static_cast<uint8_t>(text[cut]) & 0xC0) == 0x80) continue;  // inside a character
      const int32_t left = symbol(text.substr(0, cut));
      const int32_t right = left < 0 ? -1 : symbol(text.substr(cut));
      if (right >= 0) found.push_back({left, right, id});
    }
  }
  MergeTable table;
  table.reserve(found.size());
  for (const Found& f : found) {
    table.put(f.left, f.right, {ranks[static_cast<size_t>(f.id)], f.id});
  }
  CUTAWAY_OUT(span, "merges", table.size());
  return table;
}

}  // namespace cutaway::text
