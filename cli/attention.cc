// cutaway attention: where each head looked.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "cli/view_args.h"

namespace cutaway::cli {
namespace {

// What a page may hold: beyond it browsers take seconds to open it.
constexpr int64_t kMostPageBytes = int64_t{64} << 20;

// The last query, head by head.
std::string table(const Json& result) {
  const Json& tokens = result.at("tokens");
  const auto piece = [&](int64_t position) {
    return in_quotes(tokens.at(static_cast<size_t>(position)).at("piece").get<std::string>());
  };
  const auto last = static_cast<int64_t>(tokens.size()) - 1;
  std::string out =
      fmt::format("position {}, {}: where each head looks\n\n{:>5}  {:>4}  {:>7}  {}\n", last,
                  piece(last), "layer", "head", "entropy", "keys");
  for (const Json& head : result.at("heads")) {
    std::string keys;
    const Json& weights = head.at("weights").back();
    size_t i = 0;
    for (const Json& key : head.at("keys").back()) {
      keys += fmt::format("{}{} {} {:.1f} %", i > 0 ? ", " : "", key.get<int64_t>(),
                          piece(key.get<int64_t>()), 100 * weights.at(i).get<double>());
      ++i;
    }
    out +=
        fmt::format("{:>5}  {:>4}  {:>7.2f}  {}\n", head.at("layer").get<int64_t>(),
                    head.at("head").get<int64_t>(), head.at("entropy").back().get<double>(), keys);
  }
  return out;
}

}  // namespace

int attention_command(int argc, char** argv) {
  Args args("cutaway attention", "Where each head looked: attention patterns of a text.");
  ViewArgs view;
  std::optional<int64_t> top;
  std::optional<std::string> layers, heads;
  bool no_patterns = false;
  args.text("--layer,--layers", layers, "L,…", "Only these layers, like 0,3-5,20: (default: all)");
  args.text("--head,--heads", heads, "H,…", "Only these heads of each (default: all)");
  args.integer("--top", top, 0, 100, "N", "Keys per query (default: 3)");
  args.flag("--no-patterns", no_patterns,
            "Leave the matrices out: entropies and top keys only (for long texts)");
  view.add_to(args);
  args.footer(
      "A matrix takes 4/3 · n · (n + 1) bytes a head in JSON or a page for n tokens: half floats, "
      "base64. A page holds at most 67 MB of them, JSON 268 MB. Without -o or --json: the last "
      "position, head by head. docs/views.md says how to read them.");
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  AttentionRequest request;
  if (no_patterns && view.wants_page()) {
    return args.wrong_usage("--no-patterns leaves nothing to draw; a page needs the matrices");
  }
  ViewInput input = read_input(args, view);
  if (input.status) return *input.status;
  request.text = std::move(input.text);
  request.tokens = std::move(input.tokens);
  request.parse_special = view.special;
  request.interventions = std::move(input.interventions);
  request.layers = layers.value_or("");
  request.heads = heads.value_or("");
  request.top = top.value_or(request.top);
  // A table shows none of them.
  request.patterns = !no_patterns && (view.json || view.output);
  if (view.wants_page()) request.most_pattern_bytes = kMostPageBytes;
  request.cancelled = interrupted;
  const Loaded loaded = load(view.engine, view.model, &view.trace);
  if (loaded.status) return *loaded.status;
  auto result = loaded.model->attention(request, *view.session.options());
  if (!result.ok()) return finish(*loaded.engine, report(result.error()));
  return finish(*loaded.engine, write_view(view, "attention", *result, table(*result)));
}

}  // namespace cutaway::cli
