// cutaway lens: what each layer would have said, had the model ended there.
#include <fmt/format.h>

#include <limits>

#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "cli/view_args.h"

namespace cutaway::cli {
namespace {

constexpr int64_t kShown = 3;  // tokens a line of the table

std::string layer_name(int64_t layer) {
  return layer < 0 ? "embedding" : fmt::format("layer {}", layer);
}

// The last position, layer by layer: where the answer forms.
std::string table(const Json& result) {
  const Json& at = result.at("positions").back();
  const auto position = at.at("position").get<size_t>();
  std::string out = fmt::format(
      "position {}, after {}: the last layer says {}\n\n{:<10}  {:>7}  {:>6}  {:>5}  {}\n",
      position, in_quotes(result.at("tokens").at(position).at("piece").get<std::string>()),
      in_quotes(at.at("choice").at("piece").get<std::string>()), "", "entropy", "KL", "rank",
      "most probable");
  for (const Json& layer : result.at("layers")) {
    const Json& cell = layer.at("cells").back();
    std::string top;
    int64_t shown = 0;
    for (const Json& token : cell.at("top")) {
      if (shown++ == kShown) break;
      top += fmt::format("{}{} {:.1f} %", shown > 1 ? ", " : "",
                         in_quotes(token.at("piece").get<std::string>()),
                         100 * token.at("prob").get<double>());
    }
    out +=
        fmt::format("{:<10}  {:>7.2f}  {:>6.2f}  {:>5}  {}\n",
                    layer_name(layer.at("layer").get<int64_t>()), cell.at("entropy").get<double>(),
                    cell.at("kl").get<double>(), cell.at("last").at("rank").get<int64_t>(), top);
  }
  return out;
}

}  // namespace

int lens_command(int argc, char** argv) {
  Args args("cutaway lens",
            "What each layer would have said: every residual stream read as the last layer's.");
  ViewArgs view;
  std::optional<int64_t> top, last;
  args.integer("--top", top, 0, 100, "N", "Tokens per layer and position (default: 5)");
  std::optional<std::string> layers;
  args.text("--layer,--layers", layers, "L,…",
            "Only these layers, like 0,3-5,20:, or embedding for what enters the first (default: "
            "all, the embedding too)");
  args.integer("--last", last, 1, std::numeric_limits<int64_t>::max(), "N",
               "Only the last N positions; those before are context");
  view.add_to(args);
  args.footer(
      "Without -o or --json: the last position, layer by layer, in nats. rank is where the last "
      "layer's first choice stands (0: first); KL is how far the layer's distribution is from the "
      "last one's. docs/views.md says what every number means.");
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  LensRequest request;
  request.layers = layers.value_or("");
  ViewInput input = read_input(args, view);
  if (input.status) return *input.status;
  request.text = std::move(input.text);
  request.tokens = std::move(input.tokens);
  request.parse_special = view.special;
  request.interventions = std::move(input.interventions);
  request.top = top.value_or(request.top);
  request.last = last;
  request.cancelled = interrupted;
  const Loaded loaded = load(view.engine, view.model, &view.trace);
  if (loaded.status) return *loaded.status;
  auto result = loaded.model->lens(request, *view.session.options());
  if (!result.ok()) return finish(*loaded.engine, report(result.error()));
  return finish(*loaded.engine, write_view(view, "lens", *result, table(*result)));
}

}  // namespace cutaway::cli
