// Vocabularies from anywhere, made anew for each input: an error that names a key, or a tokenizer
// of which all that tokenizer_fuzz checks holds, for a short text.
//
// Input: a byte that chooses the kind, one of switches (tokenizer_checks.h); then one item a line:
// "t"
// + digit of the type + token, "m" + merge, "b" for all bytes, "c" + bytes of the character map; an
// empty line; the text.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "fuzz/tokenizer_checks.h"

namespace {

using cutaway::fuzz::VocabLists;

// Takes the lines off `data`.
VocabLists read_vocabulary(std::string_view& data, bool byte_level) {
  VocabLists lists;
  while (!data.empty()) {
    const size_t end = std::min(data.find('\n'), data.size());
    const std::string_view line = data.substr(0, end);
    data.remove_prefix(std::min(end + 1, data.size()));
    if (line.empty()) break;
    if (line[0] == 'm') lists.merges.emplace_back(line.substr(1));
    if (line[0] == 't' && line.size() >= 2) {
      const double score = -static_cast<double>(lists.tokens.size() * 7 % 16);
      lists.add(std::string(line.substr(2)), line[1] - '0', score);
    }
    if (line == "b") lists.add_all_bytes(byte_level);
    if (line[0] == 'c') {
      for (const char c : line.substr(1)) lists.map.push_back(static_cast<uint8_t>(c));
    }
  }
  return lists;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace cutaway;  // NOLINT
  constexpr size_t kMost = 2048;
  if (size < 2) return 0;
  const fuzz::Kind& kind = fuzz::kKinds[bytes[0] % fuzz::kKindCount];
  const fuzz::Switches switches(bytes[1]);
  std::string_view data(reinterpret_cast<const char*>(bytes) + 2, size - 2);
  const VocabLists lists = read_vocabulary(data, kind.byte_level());
  if (lists.tokens.size() > kMost) return 0;  // lines of "b": nothing new, only slow
  const auto tokenizer = fuzz::make_tokenizer(kind, switches.rules, lists);
  if (!tokenizer.ok()) {
    CUTAWAY_CHECK(tokenizer.error().message.find("tokenizer.ggml.") != std::string::npos);
    return 0;
  }
  fuzz::check_text(*tokenizer, data, switches, nullptr);
  return 0;
}
