// cutaway tokenize: the ids of a text, the bytes that each stands for, and every merge.
#include <fmt/format.h>

#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/output.h"
#include "cli/terminal.h"

namespace cutaway::cli {
namespace {

std::string bytes_of(const Json& token) {
  std::string bytes;
  for (const Json& byte : token.at("bytes")) bytes += static_cast<char>(byte.get<int>());
  return bytes;
}

std::string range(const Json& item) {
  return fmt::format("{}..{}", item.at("begin").get<int64_t>(), item.at("end").get<int64_t>());
}

std::string text_of(const Json& item, const char* key) { return item.at(key).get<std::string>(); }

// A token or a merge may cut characters: then the whole characters, for people to recognise.
std::string cut_characters(const Json& item, const std::string& text) {
  const auto size = static_cast<int64_t>(text.size());
  int64_t begin = item.at("begin").get<int64_t>(), end = item.at("end").get<int64_t>();
  if (begin < 0 || end > size || begin >= end) return "";
  const auto continues = [&](int64_t at) {
    return at < size && (static_cast<unsigned char>(text[static_cast<size_t>(at)]) & 0xC0) == 0x80;
  };
  if (!continues(begin) && !continues(end)) return "";
  while (begin > 0 && continues(begin)) --begin;
  while (continues(end)) ++end;
  const std::string whole =
      text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  return utf8_valid(whole) ? "  of " + in_quotes(whole) : "";
}

std::string token_table(const Json& result, const std::string& text) {
  std::string out = fmt::format("{:>6}  {:>8}  {:<12}  {}\n", "", "id", "bytes", "piece");
  size_t index = 0;
  for (const Json& token : result.at("tokens")) {
    out += fmt::format("{:>6}  {:>8}  {:<12}  {}{}{}\n", index++, token.at("id").get<int64_t>(),
                       range(token), in_quotes(bytes_of(token)), cut_characters(token, text),
                       token.at("special").get<bool>() ? "  special" : "");
  }
  return out;
}

std::string merge_table(const Json& result, const std::string& text) {
  std::string out;
  for (const Json& word : result.at("words")) {
    out += fmt::format("\n{}  {}\n", in_quotes(text_of(word, "text")), range(word));
    size_t step = 0;
    for (const Json& merge : word.at("merges")) {
      const std::string left = text_of(merge, "left"), right = text_of(merge, "right");
      out += fmt::format("{:>6}  rank {:>7}  {:<12}  {} + {}{}\n", ++step,
                         merge.at("rank").get<int64_t>(), range(merge), in_quotes(left),
                         in_quotes(right), cut_characters(merge, text));
    }
    if (step == 0) out += "        no merge\n";
    out += "        ids";
    for (const Json& id : word.at("ids")) out += fmt::format(" {}", id.get<int64_t>());
    out += "\n";
  }
  return out;
}

std::string counts(const Json& models, size_t bytes) {
  std::string out = fmt::format("{:>8}  {:>12}  {}\n", "tokens", "bytes/token", "model");
  for (const Json& model : models) {
    const int64_t n = model.at("n").get<int64_t>();
    out += fmt::format("{:>8}  {:>12.2f}  {}\n", n,
                       n > 0 ? static_cast<double>(bytes) / static_cast<double>(n) : 0.0,
                       printable(text_of(model, "model")));
  }
  return out;
}

}  // namespace

int tokenize_command(int argc, char** argv) {
  Args args("cutaway tokenize", "Shows how a text becomes tokens.");
  TextArgs text;
  std::vector<std::string> names;
  AliasArgs aliases;
  TraceArgs trace;
  bool merges = false, special = false, json = false;
  text.add_to(args, "TEXT", "The text, raw; - reads stdin, to the last byte");
  args.texts("-m,--model", names, "MODEL",
             fmt::format("A .gguf file, an installed name or an alias (default: {}); two for a "
                         "comparison",
                         kDefaultModel));
  aliases.add_to(args);
  args.flag("--merges", merges,
            "For each word every merge: in which order, which pair, which rank");
  args.flag("--special", special, "Control tokens that TEXT spells are those tokens");
  args.flag("--json", json, "One JSON document on stdout (two models: {\"models\":[…]})");
  trace.add_to(args);
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  if (names.size() > 2) return args.wrong_usage("--model: at most two models can be compared");
  if (names.empty()) names.push_back(kDefaultModel);
  for (const Status& status : {aliases.apply(), trace.check()}) {
    if (!status.ok()) return args.wrong_usage(status.error().message);
  }
  auto read = text.read();
  if (!read.ok()) return report(read.error());
  if (!read->has_value()) return args.wrong_usage("TEXT is missing");
  const std::string input = std::move(**read);

  auto engine = EngineArgs().create();
  if (!engine.ok()) return report(engine.error());
  if (const Status status = trace.attach(**engine); !status.ok()) return report(status.error());
  Json models = Json::array();
  for (const std::string& name : names) {
    auto model = load_model(**engine, name);
    if (!model.ok()) return finish(**engine, report(model.error()));
    auto result = (*model)->tokenize(input, special, merges);
    if (!result.ok()) return finish(**engine, report(result.error()));
    models.push_back(std::move(*result));
  }
  if (json) {
    write_json(models.size() == 1 ? models.front() : Json{{"models", models}});
    return finish(**engine, kDone);
  }
  for (const Json& result : models) {
    if (models.size() > 1) write_out(fmt::format("{}\n", printable(text_of(result, "model"))));
    write_out(token_table(result, input));
    if (merges) write_out(merge_table(result, input));
    write_out("\n");
  }
  write_out(counts(models, input.size()));
  return finish(**engine, kDone);
}

}  // namespace cutaway::cli
