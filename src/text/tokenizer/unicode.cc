#include "text/tokenizer/unicode.h"

#include <algorithm>
#include <map>

#include "trace/trace.h"

namespace cutaway::text {

UnicodeTable::UnicodeTable() {
  CUTAWAY_SPAN(span, "text::UnicodeTable::UnicodeTable", "ranges", kUnicodeRangeCount);
  constexpr uint32_t kBlock = 1u << kShift;
  constexpr uint32_t kBlocks = 0x110000 / kBlock;
  block_.resize(kBlocks);
  std::map<std::vector<uint16_t>, uint16_t> seen;  // equal blocks are stored once
  size_t range = 0;
  for (uint32_t block = 0; block < kBlocks; ++block) {
    const uint32_t begin = block * kBlock;
    const uint32_t end = begin + kBlock;
    std::vector<uint16_t> cells(kBlock, 0);
    while (range < kUnicodeRangeCount && kUnicodeRanges[range].last < begin) ++range;
    for (size_t i = range; i < kUnicodeRangeCount && kUnicodeRanges[i].first < end; ++i) {
      const UnicodeRange& r = kUnicodeRanges[i];
      for (uint32_t c = std::max(begin, r.first); c <= std::min(end - 1, r.last); ++c) {
        cells[c - begin] = r.flags;
      }
    }
    const auto [it, fresh] = seen.emplace(cells, static_cast<uint16_t>(seen.size()));
    if (fresh) cells_.insert(cells_.end(), cells.begin(), cells.end());
    block_[block] = it->second;
  }
  for (uint32_t c = 0; c < ascii_.size(); ++c) ascii_[c] = flags(c);
}

const UnicodeTable& UnicodeTable::get() {
  CUTAWAY_SPAN(span, "text::UnicodeTable::get");
  static const UnicodeTable table;
  return table;
}

}  // namespace cutaway::text
