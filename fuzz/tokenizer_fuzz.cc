// Any text, with any choice of which parts may spell control tokens: encoding never fails where
// every byte has a token, decoding gives the bytes back, at once and in a stream, no control token
// comes from text that is not trusted, and the tokens of a word are those of byte-pair encoding by
// its definition. One vocabulary for each kind, made once in a process; vocabulary_fuzz is about
// those of others.
//
// Input: a byte that chooses the kind, one of switches; the text (tokenizer_checks.h).
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "fuzz/tokenizer_checks.h"
#include "text/tokenizer/byte_level.h"

namespace {

using namespace cutaway;  // NOLINT
using fuzz::VocabLists;

// What the merges are learnt from.
constexpr const char* kLearnt =
    "the cat sat on the mat, and then the other cats sat there too; hello hello hello world's "
    "it's they'll we've aaaaaaaaaaaaaaaa aaaa aaaa  \n\n\n        for (int i = 0; i < 10; ++i) {\n"
    "    return values[i] == 0;\n    }\n  123 1234 12 2024 2024 3.14 ((())) ==== ---- ....\t\t\t"
    "안녕하세요 안녕하세요 한국어 한국말 한국 이 이것은 것은 漢字 漢字仮名 は は "
    "你好 你好世界 привет привет мир été été naïve ÄÖÜ äöü 😀😀 "
    "\U0001F469\u200D\U0001F469\u200D\U0001F467 ① ½ \u0301e\u0301 "
    "\u00a0\u00a0 \u3000 HELLO Hello tHE The ";

// The characters (or bytes) of the text, then 400 times the most frequent pair of neighbours, which
// becomes a token.
void learn(VocabLists& lists, bool byte_level) {
  std::vector<std::string> parts;
  const std::string_view learnt = kLearnt;
  size_t length = 1;
  for (size_t pos = 0; pos < learnt.size(); pos += length) {
    std::string part;
    if (byte_level) {
      utf8_append(part, text::kByteLevel.character[static_cast<uint8_t>(learnt[pos])]);
    } else {
      utf8_decode(learnt, pos, length);
      part = learnt[pos] == ' ' ? "\u2581" : std::string(learnt.substr(pos, length));
    }
    parts.push_back(std::move(part));
  }
  std::unordered_map<std::string, bool> known;
  const auto add = [&](const std::string& token) {
    // Some have the score of others.
    if (!known.emplace(token, true).second) return;
    lists.add(token, 1, -static_cast<double>(lists.tokens.size() / 2));
  };
  if (byte_level) {
    for (const std::string& token : lists.tokens) known.emplace(token, true);
  } else {
    for (const std::string& part : parts) add(part);
  }
  for (int merge = 0; merge < 400; ++merge) {
    std::unordered_map<std::string, int> counts;
    std::string best;
    int most = 1;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const std::string pair = parts[i] + " " + parts[i + 1];
      const int n = ++counts[pair];
      if (n > most || (n == most && pair < best)) {
        most = n;
        best = pair;
      }
    }
    if (best.empty()) break;
    const size_t space = best.find(' ');
    const std::string left = best.substr(0, space), right = best.substr(space + 1);
    lists.merges.push_back(best);
    add(left + right);
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      if (parts[i] != left || parts[i + 1] != right) continue;
      parts[i] += right;
      parts.erase(parts.begin() + static_cast<ptrdiff_t>(i) + 1);
    }
  }
}

VocabLists fixed_vocabulary(bool byte_level) {
  VocabLists lists;
  if (!byte_level) {
    lists.add("<unk>", 2);
    lists.add("<s>", 3);
    lists.add("</s>", 3);
  }
  lists.add_all_bytes(byte_level);
  learn(lists, byte_level);
  for (const char* user : {"<think>", byte_level ? "  " : "\u2581\u2581", "<|im"}) {
    lists.add(user, 4);
  }
  for (const char* control : {"<|im_start|>", "<|", "aaa", "<|im_end|>"}) lists.add(control, 3);
  return lists;
}

struct Made {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::optional<fuzz::PlainBpe> plain;
};

const Made& made(size_t kind, int rules) {
  static const std::array<VocabLists, 2> lists = {fixed_vocabulary(false), fixed_vocabulary(true)};
  static std::array<std::array<Made, 8>, fuzz::kKindCount> all;
  Made& one = all[kind][static_cast<size_t>(rules)];
  if (!one.tokenizer) {
    const bool byte_level = fuzz::kKinds[kind].byte_level();
    auto tokenizer = fuzz::make_tokenizer(fuzz::kKinds[kind], rules, lists[byte_level]);
    CUTAWAY_CHECK(tokenizer.ok());
    one.tokenizer = *tokenizer;
    if (byte_level) one.plain.emplace(*one.tokenizer, lists[byte_level].merges);
  }
  return one;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size < 2) return 0;
  const fuzz::Switches switches(bytes[1]);
  const Made& one = made(bytes[0] % fuzz::kKindCount, switches.rules);
  const std::string_view data(reinterpret_cast<const char*>(bytes) + 2, size - 2);
  fuzz::check_text(one.tokenizer, data, switches, one.plain ? &*one.plain : nullptr);
  return 0;
}
