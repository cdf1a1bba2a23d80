// Where texts are cut before BPE, against Hugging Face's pre-tokenizers made of the published
// expressions, for every value of tokenizer.ggml.pre that both sides know. The file comes from
// `tools/make_oracle.py tokenizers`; without it the test is skipped.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "base/json.h"
#include "tests/oracle/oracle_files.h"
#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/unicode.h"

namespace cutaway::text {
namespace {

// What llama.cpp does not say of these: their tokenizer.json takes a piece that is a token whole.
const std::set<std::string> kWholeTokensToo = {"gpt-4o", "llama4", "kanana2", "minimax-m2"};

std::vector<size_t> lengths_of_words(const PreTokenizer& pre, const std::string& text) {
  std::vector<size_t> lengths;
  const Status status =
      pre.for_each_word(UnicodeTable::get(), text, [&](std::string_view word) -> Status {
        lengths.push_back(word.size());
        return {};
      });
  EXPECT_TRUE(status.ok());
  return lengths;
}

TEST(CutsOracle, SamePiecesForEveryKnownName) {
  const std::filesystem::path path = tokenizer_oracle_folder() / "cuts.jsonl";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << path << " is not there: run tools/make_oracle.py tokenizers";
  }
  std::ifstream lines(path);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const Json header = Json::parse(line);

  // Our pre-tokenizers, and for each the names of those of the file that it must cut like.
  std::map<const PreTokenizer*, std::set<std::string>> pairs;
  size_t compared = 0;
  for (const auto& [name, published] : header["names"].items()) {
    const auto ours = find_pre_tokenizer(name);
    if (!ours.ok()) continue;
    ASSERT_FALSE(published["cuts"].is_null()) << name << " is known: its cuts must be made";
    pairs[*ours].insert(published["cuts"].get<std::string>());
    EXPECT_EQ((*ours)->ignore_merges,
              published["ignore_merges"].get<bool>() || kWholeTokensToo.contains(name))
        << name;
    ++compared;
  }
  EXPECT_GE(compared, 60u);

  size_t texts = 0, different = 0;
  while (std::getline(lines, line)) {
    const Json test = Json::parse(line);
    const std::string text = from_base64(test["text"].get<std::string>());
    ++texts;
    for (const auto& [ours, names] : pairs) {
      const std::vector<size_t> lengths = lengths_of_words(*ours, text);
      for (const std::string& name : names) {
        const auto expected = test["cuts"][name].get<std::vector<size_t>>();
        if (lengths == expected || ++different > 10) continue;
        ADD_FAILURE() << ours->name << " for " << name << ": " << line.substr(0, 400)
                      << "\nours:   " << testing::PrintToString(lengths)
                      << "\ntheirs: " << testing::PrintToString(expected);
      }
    }
  }
  EXPECT_GT(texts, 3000u);
  EXPECT_EQ(different, 0u);
  std::printf("%zu texts, %zu names by %zu pre-tokenizers, %zu different\n", texts, compared,
              pairs.size(), different);
}

}  // namespace
}  // namespace cutaway::text
