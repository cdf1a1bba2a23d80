// What the fuzzers of texts (tokenizer_fuzz) and of vocabularies (vocabulary_fuzz) share: kinds of
// tokenizers, their lists as a file has them, and what must hold of every text.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/tokenizer/tokenizer.h"

namespace cutaway::fuzz {

struct Kind {
  const char* model;
  const char* pre;
  bool byte_level() const { return std::string_view(model) == "gpt2"; }
};
// Every pre-tokenizer, then every other model.
inline constexpr Kind kKinds[] = {{"gpt2", "gpt-2"},
                                  {"gpt2", "mpt"},
                                  {"gpt2", "smollm"},
                                  {"gpt2", "command-r"},
                                  {"gpt2", "qwen2"},
                                  {"gpt2", "stablelm2"},
                                  {"gpt2", "qwen35"},
                                  {"gpt2", "seed-coder"},
                                  {"gpt2", "ufakzeka"},
                                  {"gpt2", "laguna"},
                                  {"gpt2", "llama-bpe"},
                                  {"gpt2", "dbrx"},
                                  {"gpt2", "jais-2"},
                                  {"gpt2", "minicpm5"},
                                  {"gpt2", "gpt-4o"},
                                  {"gpt2", "tekken"},
                                  {"gpt2", "deepseek-llm"},
                                  {"gpt2", "deepseek-coder"},
                                  {"gpt2", "deepseek-v3"},
                                  {"gpt2", "falcon"},
                                  {"gpt2", "bloom"},
                                  {"gpt2", "viking"},
                                  {"llama", ""},
                                  {"gemma4", ""},
                                  {"bert", ""},
                                  {"t5", ""}};
inline constexpr size_t kKindCount = std::size(kKinds);

// One byte of an input.
struct Switches {
  explicit Switches(uint8_t bits)
      : rules(bits & 7),
        first_trusted((bits & 8) != 0),
        add_special((bits & 16) != 0),
        drop((bits & 32) != 0) {}
  int rules;  // of the file: space prefix, extra white space removed, lower case
  bool first_trusted, add_special, drop;
};

struct VocabLists {
  std::vector<std::string> tokens, merges;
  std::vector<int64_t> types, map;
  std::vector<double> scores;
  void add(std::string token, int64_t type, double score = -1) {
    tokens.push_back(std::move(token));
    types.push_back(type);
    scores.push_back(score);
  }
  void add_all_bytes(bool byte_level);
};

Result<std::shared_ptr<const text::Tokenizer>> make_tokenizer(const Kind& kind, int rules,
                                                              const VocabLists& lists);

// Byte-pair encoding by its definition: of all pairs the least rank, the leftmost; a pair, then all
// of them anew.
class PlainBpe {
 public:
  explicit PlainBpe(const text::Tokenizer& tokenizer, const std::vector<std::string>& merges);
  std::vector<int32_t> encode(std::string_view word) const;

 private:
  bool ignore_merges_;
  std::map<std::string, int32_t, std::less<>> ids_;
  struct Merge {
    size_t rank;
    int32_t id;
  };
  std::unordered_map<uint64_t, Merge> merges_;
};

// `data`: a text, cut into segments at bytes 0x1E (what follows is trusted) and 0x1F (is not).
void check_text(const std::shared_ptr<const text::Tokenizer>& tokenizer, std::string_view data,
                const Switches& switches, const PlainBpe* plain);

}  // namespace cutaway::fuzz
