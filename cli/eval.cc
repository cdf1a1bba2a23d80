// cutaway eval: how well a model predicts a text, and what it lost against a baseline.
#include <fmt/format.h>

#include <limits>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "cutaway/evaluation.h"

namespace cutaway::cli {
namespace {

constexpr int64_t kMany = std::numeric_limits<int64_t>::max();

struct EvalArgs {
  ModelArgs model;
  EngineArgs engine;
  SessionArgs session;
  TraceArgs trace;
  std::optional<std::string> text, baseline;
  std::optional<int64_t> tokens, warmup;
  bool no_layers = false, json = false;

  void add_to(Args& args) {
    args.text("--text", text, "FILE", "The text, raw; - reads stdin");
    args.text("--baseline", baseline, "MODEL",
              "Compare with this model (of the same vocabulary), token by token");
    args.integer("--tokens", tokens, 2, kMany, "N", "Only the first N tokens of the text");
    args.integer("-c,--context", session.context, 2, kMany, "N",
                 "Tokens of a window (default: 512), each begun with an empty context");
    args.integer("--warmup", warmup, 0, kMany, "N",
                 "Tokens of a window that are context only (default: half of it)");
    args.flag("--no-layers", no_layers, "With --baseline: leave the damage by layer out");
    args.flag("--json", json, "One JSON document on stdout");
    args.group("Model and computation");
    model.add_to(args);
    engine.add_to(args);
    session.add_computation_to(args);
    args.group("Trace");
    trace.add_to(args);
    args.footer(
        "Perplexity as llama.cpp computes it on the same windows. Ctrl-C ends it: what whole "
        "windows\ngave is shown, exit status 130.\n"
        "  cutaway eval -m small-Q4_K_M.gguf --baseline small-F16.gguf --text book.txt");
  }
};

std::string with_error(const Json& json, const char* key, double factor, int digits) {
  if (json.at(key).is_null()) return "-";
  return fmt::format("{:.{}f} ± {:.{}f}", factor * json.at(key).get<double>(), digits,
                     factor * json.at("standard_error").get<double>(), digits);
}

std::string percent(const Json& share) {
  return share.is_null() ? "-" : fmt::format("{:.2f} %", 100 * share.get<double>());
}

void add_scores(const Json& scores, std::string& out) {
  out += fmt::format("{}: perplexity {}, first choice right {}\n",
                     printable(scores.at("model").get<std::string>()),
                     with_error(scores.at("perplexity"), "value", 1, 4),
                     percent(scores.at("top1_accuracy")));
}

void add_layers(const Json& layers, std::string& out) {
  out += fmt::format("\n{:<8} {:>15} {:>10}   (residual stream after it)\n", "layer",
                     "relative error", "cosine");
  double largest = 0;
  for (const Json& row : layers) {
    largest = std::max(largest, row.at("relative_error").get<double>());
  }
  for (const Json& row : layers) {
    const auto layer = row.at("layer").get<int64_t>();
    const double error = row.at("relative_error").get<double>();
    std::string bar;
    for (int i = 0; largest > 0 && i < static_cast<int>(24 * error / largest + 0.5); ++i)
      bar += "▪";
    out += fmt::format("{:<8} {:>13.3f} % {:>10.6f}   {}\n",
                       layer < 0 ? "embed" : std::to_string(layer), 100 * error,
                       row.at("cosine").get<double>(), bar);
  }
}

std::string table(const Json& result) {
  std::string out;
  add_scores(result, out);
  if (result.contains("baseline")) {
    const Json& base = result.at("baseline");
    add_scores(base, out);
    out += fmt::format("against it: perplexity × {}, same first choice {} %\n",
                       with_error(base.at("perplexity_ratio"), "value", 1, 5),
                       with_error(base.at("top1_agreement"), "value", 100, 2));
    const Json& kl = base.at("kl");
    if (!kl.at("median").is_null()) {
      out += fmt::format(
          "KL divergence (nats): mean {}, median {:.6f}, 90 % {:.6f}, 99 % {:.6f}, max {:.4f}\n",
          with_error(kl, "mean", 1, 6), kl.at("median").get<double>(), kl.at("p90").get<double>(),
          kl.at("p99").get<double>(), kl.at("max").get<double>());
    }
    if (base.contains("layers")) add_layers(base.at("layers"), out);
  }
  const auto left_out = result.at("left_out").get<int64_t>();
  out += fmt::format("{} tokens scored in {} window{} of {}{}; {:.0f} tokens/s\n",
                     result.at("scored").get<int64_t>(), result.at("windows").get<int64_t>(),
                     result.at("windows") == 1 ? "" : "s", result.at("window").get<int64_t>(),
                     left_out > 0 ? fmt::format(", {} of {} tokens left out", left_out,
                                                result.at("tokens").get<int64_t>())
                                  : "",
                     result.at("timings").at("tokens_per_second").get<double>());
  return out;
}

}  // namespace

int eval_command(int argc, char** argv) {
  Args args("cutaway eval",
            "Measures how well a model predicts a text, and what it lost against a baseline.");
  EvalArgs eval;
  eval.add_to(args);
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  if (!eval.text) return args.wrong_usage("--text FILE is missing");
  if (eval.no_layers && !eval.baseline) {
    return args.wrong_usage("--no-layers has no effect without --baseline; leave it out");
  }
  auto options = eval.session.options();
  if (!options.ok()) return args.wrong_usage(options.error().message);
  TextArgs source;
  source.name = "--text";
  source.file = eval.text;
  auto text = source.read();
  if (!text.ok()) return report(text.error());
  Loaded loaded = load(eval.engine, eval.model, &eval.trace);
  if (loaded.status) return *loaded.status;
  const bool bar_shown = !eval.trace.on_terminal();
  std::shared_ptr<Model> baseline;
  if (eval.baseline) {
    auto other = load_model(*loaded.engine, *eval.baseline, bar_shown);
    if (!other.ok()) return finish(*loaded.engine, report(other.error()));
    baseline = *other;
  }
  EvaluationRequest request;
  request.text = std::move(**text);
  request.max_tokens = eval.tokens.value_or(0);
  request.warmup = eval.warmup;
  request.layers = !eval.no_layers;
  ProgressBar bar(300, bar_shown);
  request.progress = bar.callback();
  auto result = evaluate(*loaded.model, baseline.get(), request, *options);
  bar.clear();
  if (!result.ok()) return finish(*loaded.engine, report(result.error()));
  for (const Json& warning : result->at("warnings")) print_warning(warning.get<std::string>());
  if (eval.json) {
    write_json(*result);
  } else {
    write_out(table(*result));
  }
  return finish(*loaded.engine, result->at("cancelled").get<bool>() ? kInterrupted : kDone);
}

}  // namespace cutaway::cli
