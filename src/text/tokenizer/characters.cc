#include "text/tokenizer/characters.h"

#include <bit>
#include <unordered_map>

#include "trace/trace.h"

namespace cutaway::text {

Characters::Characters(const Vocabulary& vocabulary) : pairs_(kPairBits / 64) {
  CUTAWAY_SPAN(span, "text::Characters::Characters", "tokens", vocabulary.size());
  std::unordered_map<int32_t, int32_t> symbols;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary.is_text(id)) continue;
    const std::string_view text = vocabulary.bytes(id);
    size_t length = 0;
    int32_t left = -1;
    for (size_t pos = 0; pos < text.size(); pos += length) {
      const int32_t code = code_at(text, pos, length);
      if (pos > 0) add_pair(left, code);
      left = code;
      if (code < 0) continue;
      const auto [it, fresh] = symbols.emplace(code, kNone);
      if (length == text.size()) it->second = vocabulary.find_text(text);
    }
  }
  int32_t next = vocabulary.size();
  slots_.resize(std::bit_ceil(symbols.size() * 2 + 1));
  ascii_.fill(kNone);
  const size_t mask = slots_.size() - 1;
  for (auto& [code, symbol] : symbols) {
    if (symbol == kNone) symbol = next++;
    if (code < 128) ascii_[static_cast<size_t>(code)] = symbol;
    size_t i = slot_of(code, mask);
    while (slots_[i].code_point >= 0) i = (i + 1) & mask;
    slots_[i] = {code, symbol};
  }
  symbols_end_ = next;
  CUTAWAY_OUT(span, "characters", symbols.size(), "without_token", next - vocabulary.size());
}

}  // namespace cutaway::text
