#include "text/tokenizer/pretokenizer.h"

#include "trace/trace.h"

namespace cutaway::text {
namespace {

// By the names that files use; where models share the expressions and differ in the rest, each has
// a line. Where a tokenizer.json says more than its GGUF (NFC), it is said here.
const PreTokenizer kKnown[] = {
    {.name = "gpt-2", .steps = {kWordCuts.gpt2}},
    {.name = "mpt", .steps = {kWordCuts.gpt2}, .nfc = true},
    {.name = "smollm", .steps = {kWordCuts.digits_gpt2}},
    {.name = "command-r", .steps = {kWordCuts.digits_gpt2}, .nfc = true},
    {.name = "qwen2", .steps = {kWordCuts.qwen2}, .nfc = true},
    {.name = "stablelm2", .steps = {kWordCuts.qwen2}},
    {.name = "qwen35", .steps = {kWordCuts.qwen35}, .nfc = true},
    {.name = "seed-coder", .steps = {kWordCuts.seed}},
    {.name = "ufakzeka", .steps = {kWordCuts.ufakzeka}},
    {.name = "laguna", .steps = {kClassCuts.lines, kWordCuts.qwen2}},
    {.name = "llama-bpe", .steps = {kWordCuts.gpt4}, .ignore_merges = true, .add_bos = true},
    {.name = "dbrx", .steps = {kWordCuts.gpt4}},
    {.name = "glm4", .steps = {kWordCuts.gpt4}, .ignore_merges = true},
    {.name = "jais-2", .steps = {kWordCuts.jais2}},
    {.name = "minicpm5",
     .steps = {kClassCuts.three_numbers, kWordCuts.minicpm5},
     .ignore_merges = true},
    {.name = "gpt-4o", .steps = {kWordCuts.gpt4o}, .ignore_merges = true},
    {.name = "tekken", .steps = {kWordCuts.tekken}, .ignore_merges = true, .add_bos = true},
    {.name = "deepseek-llm",
     .steps = {kClassCuts.line_breaks, kClassCuts.cased_letters, kClassCuts.listed_punctuation,
               kClassCuts.trailing_spaces, kClassCuts.east_asian, kClassCuts.digits}},
    {.name = "deepseek-coder",
     .steps = {kClassCuts.line_breaks, kClassCuts.letters, kClassCuts.any_punctuation,
               kClassCuts.east_asian, kClassCuts.digits}},
    {.name = "deepseek-v3",
     .steps = {kClassCuts.three_numbers, kClassCuts.han_and_kana, kWordCuts.deepseek3}},
    {.name = "falcon",
     .steps = {kClassCuts.punctuation, kWordCuts.gpt2, kClassCuts.digit_bytes,
               kClassCuts.three_digits}},
    {.name = "bloom", .steps = {kClassCuts.bloom}},
    {.name = "viking", .steps = {kClassCuts.bloom, kClassCuts.each_number}},
};

struct Alias {
  std::string_view pre, name;
};
constexpr Alias kAliases[] = {
    {"", "gpt-2"},
    {"default", "gpt-2"},
    {"gpt2", "gpt-2"},
    {"phi-2", "gpt-2"},
    {"jais", "gpt-2"},
    {"gigachat", "gpt-2"},
    {"mellum", "gpt-2"},
    {"modern-bert", "gpt-2"},
    {"roberta-bpe", "gpt-2"},
    {"jina-v1-en", "gpt-2"},
    {"jina-v2-es", "gpt-2"},
    {"jina-v2-de", "gpt-2"},
    {"jina-v2-code", "gpt-2"},
    {"a.x-4.0", "gpt-2"},
    {"trillion", "gpt-2"},
    {"exaone4", "gpt-2"},
    {"granite-docling", "gpt-2"},
    {"olmo", "mpt"},
    {"starcoder", "smollm"},
    {"refact", "smollm"},
    {"codeshell", "smollm"},
    {"exaone", "smollm"},
    {"minerva-7b", "smollm"},
    {"mellum2", "smollm"},
    {"deepseek-r1-qwen", "qwen2"},
    {"megrez", "qwen2"},
    {"kormo", "qwen2"},
    {"hunyuan", "stablelm2"},
    {"grok-2", "stablelm2"},
    {"solar-open", "stablelm2"},
    {"bailingmoe", "stablelm2"},
    {"bailingmoe2", "stablelm2"},
    {"llada-moe", "stablelm2"},
    {"llama3", "llama-bpe"},
    {"llama-v3", "llama-bpe"},
    {"falcon3", "llama-bpe"},
    {"falcon-h1", "llama-bpe"},
    {"pixtral", "llama-bpe"},
    {"midm-2.0", "llama-bpe"},
    {"lfm2", "llama-bpe"},
    {"smaug-bpe", "dbrx"},
    {"chatglm-bpe", "dbrx"},
    {"glm5", "glm4"},
    {"llama4", "gpt-4o"},
    {"gpt-oss", "gpt-4o"},
    {"kanana2", "gpt-4o"},
    {"minimax-m2", "gpt-4o"},
    {"hunyuan-dense", "deepseek-v3"},
    {"joyai-llm", "deepseek-v3"},
    {"hy_v4", "deepseek-v3"},
    {"poro-chat", "bloom"},
    {"gpt3-finnish", "bloom"},
};

std::string known_names() {
  std::string names;
  for (const PreTokenizer& known : kKnown) names.append(known.name).append(", ");
  for (const Alias& alias : kAliases) {
    if (!alias.pre.empty()) names.append(alias.pre).append(", ");
  }
  names.resize(names.size() - 2);
  return names;
}

}  // namespace

Result<const PreTokenizer*> find_pre_tokenizer(const std::string& pre) {
  CUTAWAY_SPAN(span, "text::find_pre_tokenizer", "pre", pre);
  std::string_view name = pre;
  for (const Alias& alias : kAliases) {
    if (alias.pre == pre) name = alias.name;
  }
  for (const PreTokenizer& known : kKnown) {
    if (known.name == name) {
      CUTAWAY_OUT(span, "name", known.name);
      return &known;
    }
  }
  return Error{ErrorCode::kUnsupported,
               "tokenizer.ggml.pre is \"" + pre + "\"; this build knows " + known_names(),
               "tokenizer.ggml.pre"};
}

}  // namespace cutaway::text
