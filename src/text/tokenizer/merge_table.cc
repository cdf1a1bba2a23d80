#include "text/tokenizer/bpe_merges.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>

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

void MergeTable::reserve(size_t merges) {
  CUTAWAY_SPAN(span, "text::MergeTable::reserve", "merges", merges);
  slots_.assign(std::max(kWay, std::bit_ceil(merges + merges / 2 + 1)), kFree);
  // 8 to 16 bits a merge, at most 512 KB.
  const size_t words = std::clamp<size_t>(std::bit_ceil(merges / 8 + 1), 2, size_t{1} << 16);
  filter_.assign(words, 0);
  filter_shift_ = 64 - std::countr_zero(words);
  mask_ = slots_.size() - 1;
}

namespace {

// What the table's eight bytes a merge can say.
Status check_counts(size_t merges, const char* key, int64_t symbols) {
  if (merges > MergeTable::kMaxMerges) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("{} has {} entries; at most {} can be read", key, merges,
                             MergeTable::kMaxMerges),
                 key};
  }
  if (symbols > MergeTable::kMaxSymbols) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("tokenizer.ggml.tokens has {} tokens and other characters; with "
                             "merges at most {} can be read",
                             symbols, MergeTable::kMaxSymbols),
                 "tokenizer.ggml.tokens"};
  }
  return {};
}

}  // namespace

Result<MergeTable> MergeTable::read(const Metadata& metadata, const Vocabulary& vocabulary) {
  CUTAWAY_SPAN(span, "text::MergeTable::read");
  CUTAWAY_ASSIGN(const std::vector<std::string>* merges, metadata.strings(kMerges));
  CUTAWAY_TRY(check_counts(merges->size(), kMerges, vocabulary.size()));
  MergeTable table;
  table.reserve(merges->size());
  std::string buffer;
  int32_t guess = 0;
  std::vector<Parents> made;
  std::vector<int32_t> ids;
  made.reserve(merges->size());
  ids.reserve(merges->size());
  std::optional<int64_t> first_id;  // what id − rank has been so far; −1: not one number
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
    // Of two equal merges the later counts, as in `tokenizers`.
    table.put(left, right, static_cast<uint32_t>(i));
    made.push_back({left, right, static_cast<uint32_t>(i)});
    ids.push_back(id);
    const int64_t first = id - static_cast<int64_t>(i);
    first_id = first_id.value_or(first) == first ? first : -1;
    if (halves.left == 1 && halves.right == 1) {
      table.byte_ranks_[static_cast<size_t>(static_cast<uint8_t>(whole[0])) << 8 |
                        static_cast<uint8_t>(whole[1])] = static_cast<uint32_t>(i);
    }
  }
  table.read_parents(vocabulary, made, ids);
  table.first_id_ = static_cast<int32_t>(std::max<int64_t>(first_id.value_or(-1), -1));
  if (table.first_id_ < 0) {
    table.ids_.assign(merges->size(), -1);
    for (size_t i = 0; i < made.size(); ++i) table.ids_[made[i].rank] = ids[i];
  }
  CUTAWAY_OUT(span, "merges", table.size());
  return table;
}

void MergeTable::read_parents(const Vocabulary& vocabulary, std::span<const Parents> merges,
                              std::span<const int32_t> ids) {
  CUTAWAY_SPAN(span, "text::MergeTable::read_parents", "merges", merges.size());
  bool tells = vocabulary.spelling() == Spelling::kByteLevel && !vocabulary.has_duplicates();
  if (tells) parents_.assign(static_cast<size_t>(vocabulary.size()), {});
  for (size_t i = 0; i < merges.size() && tells; ++i) {
    Parents& parents = parents_[static_cast<size_t>(ids[i])];
    tells = parents.rank == kNever;
    parents = merges[i];
  }
  for (int byte = 0; byte < 256 && tells; ++byte) {
    const int32_t id = vocabulary.byte_token(static_cast<uint8_t>(byte));
    if (id >= 0) parents_[static_cast<size_t>(id)].rank = kSymbol;
  }
  for (size_t i = 0; i < merges.size() && tells; ++i) {
    for (const int32_t part : {merges[i].left, merges[i].right}) {
      const uint32_t rank = parents_[static_cast<size_t>(part)].rank;
      tells = tells && (rank >= kMaxMerges || rank < merges[i].rank);
    }
  }
  if (!tells) parents_.clear();
  CUTAWAY_OUT(span, "tells", tells);
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
  CUTAWAY_TRY(check_counts(0, "", characters.symbols_end()));
  MergeTable table;
  table.reserve(found.size());
  const auto rank_of = [&](const Found& f) { return ranks[static_cast<size_t>(f.id)]; };
  // Tokens of one score have one rank.
  table.ids_.assign(ranks.size(), -1);
  for (const Found& f : found) {
    int32_t& id = table.ids_[rank_of(f)];
    if (id >= 0 && id != f.id) table.ids_by_rank_ = false;
    id = f.id;
  }
  if (!table.ids_by_rank_) table.ids_.assign(table.slots_.size(), -1);
  for (const Found& f : found) {
    const size_t slot = table.put(f.left, f.right, rank_of(f));
    if (!table.ids_by_rank_) table.ids_[slot] = f.id;
  }
  CUTAWAY_OUT(span, "merges", table.size());
  return table;
}

}  // namespace cutaway::text
