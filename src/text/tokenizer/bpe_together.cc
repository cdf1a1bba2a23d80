// Several words merged side by side. One word's merges wait for one another, and each for memory:
// so every word takes a step, then all their looks into the table are under way at once.
#include <algorithm>
#include <array>
#include <cstring>

#include "text/tokenizer/bpe_merges.h"
#include "trace/trace.h"

namespace cutaway::text {
namespace {

constexpr size_t kBytes = Bpe::Together::kLongest;
constexpr int kPlaceBits = 6;
static_assert(kBytes < 1 << kPlaceBits);
constexpr uint32_t kNothing = MergeTable::kMaxMerges << kPlaceBits;

// The parts of a word, by the place at which they begin, as in merge_short. What is at kBytes is in
// front of the first part and behind the last: no symbol, so that neither needs to be asked after.
struct Word {
  alignas(16) uint32_t pairs[kBytes + 4];
  int32_t ids[kBytes + 1];
  uint8_t next[kBytes + 1], previous[kBytes + 1];
  uint8_t n;       // bytes
  uint8_t number;  // among the words
};

// The least of 4 · kVectors numbers below 2³¹.
template <int kVectors>
uint32_t least(const uint32_t* numbers) {
  using Four = int32_t __attribute__((vector_size(16)));
  Four low = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX};
  for (int i = 0; i < kVectors; ++i) {
    Four four;
    std::memcpy(&four, numbers + 4 * i, sizeof four);
    low = four < low ? four : low;
  }
  return static_cast<uint32_t>(std::min(std::min(low[0], low[1]), std::min(low[2], low[3])));
}

// False: a byte has no token.
bool begin(const Vocabulary& vocabulary, const MergeTable& merges, std::string_view bytes,
           Word& word) {
  const size_t n = bytes.size();
  std::fill_n(word.pairs, kBytes, kNothing);
  bool all = true;
  for (size_t i = 0; i < n; ++i) {
    word.ids[i] = vocabulary.byte_token(static_cast<uint8_t>(bytes[i]));
    all &= word.ids[i] >= 0;
    word.next[i] = static_cast<uint8_t>(i + 1);
    word.previous[i] = static_cast<uint8_t>(i - 1);
  }
  for (size_t i = 0; i + 1 < n; ++i) {
    const uint32_t rank =
        merges.rank_of_bytes(static_cast<uint8_t>(bytes[i]), static_cast<uint8_t>(bytes[i + 1]));
    word.pairs[i] = rank << kPlaceBits | static_cast<uint32_t>(i);
  }
  word.ids[n] = word.ids[kBytes] = -1;
  word.previous[0] = kBytes;
  word.n = static_cast<uint8_t>(n);
  return all;
}

// Two pairs that a merge has made neighbours.
struct Asked {
  Word* word;
  uint32_t left, right;  // the places of the pairs
  MergeTable::Asked left_pair, right_pair;
};
struct Found {
  Word* word;
  uint32_t place;
  MergeTable::Asked pair;
};

// The best merge of a word, made; false: there is none.
bool step(const MergeTable& merges, Word& word, Asked& asked) {
  const uint32_t best =
      word.n <= kBytes / 2 ? least<kBytes / 8>(word.pairs) : least<kBytes / 4>(word.pairs);
  if (best >= kNothing) return false;
  const uint32_t i = best & ((1 << kPlaceBits) - 1), rank = best >> kPlaceBits;
  const uint32_t middle = word.next[i], end = word.next[middle], before = word.previous[i];
  const int32_t id = merges.made(word.ids[i], word.ids[middle], rank);
  word.ids[i] = id;
  word.next[i] = static_cast<uint8_t>(end);
  word.previous[end] = static_cast<uint8_t>(i);
  word.pairs[middle] = word.pairs[i] = word.pairs[before] = kNothing;
  asked = {&word, before, i, merges.ask(word.ids[before], id), merges.ask(id, word.ids[end])};
  return true;
}

}  // namespace

void Bpe::merge_together(std::span<const Waiting> words, Together& out,
                         uint64_t& operations) const {
  std::array<Word, kTogether> all;
  std::array<Word*, kTogether> open;
  std::array<Asked, kTogether> asked;
  std::array<Found, 2 * kTogether> found;
  size_t n = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    out.whole[i] = find_whole(words[i]);
    out.count[i] = 0;
    const std::string_view word = words[i].word;
    if (out.whole[i].taken || word.size() < 2 || word.size() > kBytes) continue;
    all[n].number = static_cast<uint8_t>(i);
    if (begin(*vocabulary_, merges_, word, all[n])) {
      open[n] = &all[n];
      ++n;
    }
  }
  const size_t begun = n;
  while (n > 0) {
    size_t still = 0;
    operations += n * kBytes;
    for (size_t i = 0; i < n; ++i) {
      Word* const word = open[i];
      open[still] = word;
      still += step(merges_, *word, asked[still]) ? 1 : 0;
    }
    n = still;
    size_t hits = 0;
    for (size_t i = 0; i < n; ++i) {
      const Asked& a = asked[i];
      found[hits] = {a.word, a.left, a.left_pair};
      hits += merges_.may_hold(a.left_pair) ? 1 : 0;
      found[hits] = {a.word, a.right, a.right_pair};
      hits += merges_.may_hold(a.right_pair) ? 1 : 0;
    }
    for (size_t i = 0; i < hits; ++i) {
      const Found& f = found[i];
      f.word->pairs[f.place] = merges_.rank(f.pair) << kPlaceBits | f.place;
    }
  }
  for (size_t w = 0; w < begun; ++w) {
    const Word& word = all[w];
    std::array<Part, kBytes>& parts = out.parts[word.number];
    size_t count = 0;
    for (uint32_t i = 0; i < word.n; i = word.next[i]) parts[count++] = {word.ids[i], word.next[i]};
    out.count[word.number] = static_cast<uint8_t>(count);
    const Whole& whole = out.whole[word.number];
    if (whole.id >= 0) learn(whole.id, count == 1 && parts[0].id == whole.id);
  }
}

}  // namespace cutaway::text
