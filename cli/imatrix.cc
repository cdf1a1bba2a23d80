// cutaway imatrix: how much each column of a model's matrices counts, for quantize --imatrix.
#include <fmt/format.h>

#include <filesystem>
#include <limits>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "cutaway/quantization.h"

namespace cutaway::cli {
namespace {

constexpr int64_t kMany = std::numeric_limits<int64_t>::max();

struct ImatrixArgs {
  ModelArgs model;
  EngineArgs engine;
  SessionOptions options;
  TraceArgs trace;
  std::optional<std::string> text, output;
  std::optional<int64_t> tokens, context;
  bool force = false, json = false;

  void add_to(Args& args) {
    args.text("--text", text, "FILE", "What the model reads meanwhile, raw; - reads stdin");
    args.text("-o,--output", output, "FILE", "The .gguf file to write");
    args.integer("--tokens", tokens, 1, kMany, "N", "Only the first N tokens of the text");
    args.integer("-c,--context", context, 1, kMany, "N",
                 "Tokens of a window (default: 512), each begun with an empty context");
    args.flag("--force", force, "Replace FILE when it exists");
    args.flag("--json", json, "One JSON document on stdout");
    args.group("Model and computation");
    model.add_to(args);
    engine.add_to(args);
    args.group("Trace");
    trace.add_to(args);
    args.footer(
        "Use the model as it was before quantising, and text of the kind that it will read:\n"
        "some hundred thousand tokens are plenty. llama.cpp reads the file too.\n"
        "  cutaway imatrix -m model-F16.gguf --text calibration.txt -o model.imatrix.gguf\n"
        "  cutaway quantize model-F16.gguf model-Q3_K_M.gguf Q3_K_M --imatrix model.imatrix.gguf");
  }
};

std::string summary(const Json& result) {
  const auto left_out = result.at("left_out").get<int64_t>();
  return fmt::format("{}: {} matrices, {} window{} of {} tokens{}; {:.0f} tokens/s\n",
                     printable(result.at("file").get<std::string>()),
                     result.at("tensors").get<int64_t>(), result.at("windows").get<int64_t>(),
                     result.at("windows") == 1 ? "" : "s", result.at("window").get<int64_t>(),
                     left_out > 0 ? fmt::format(", {} tokens left out", left_out) : "",
                     result.at("timings").at("tokens_per_second").get<double>());
}

}  // namespace

int imatrix_command(int argc, char** argv) {
  Args args("cutaway imatrix",
            "Measures on a text how much each column of a model's matrices counts.");
  ImatrixArgs imatrix;
  imatrix.add_to(args);
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  if (!imatrix.text) return args.wrong_usage("--text FILE is missing");
  if (!imatrix.output) return args.wrong_usage("-o FILE is missing");
  TextArgs source;
  source.name = "--text";
  source.file = imatrix.text;
  auto text = source.read();
  if (!text.ok()) return report(text.error());
  Loaded loaded = load(imatrix.engine, imatrix.model, &imatrix.trace);
  if (loaded.status) return *loaded.status;
  ImportanceRequest request;
  request.text = std::move(**text);
  request.max_tokens = imatrix.tokens.value_or(0);
  request.dataset = std::filesystem::path(*imatrix.text).filename().string();
  request.output = *imatrix.output;
  request.overwrite = imatrix.force;
  imatrix.options.context = imatrix.context.value_or(0);
  ProgressBar bar(300, !imatrix.trace.on_terminal());
  request.progress = bar.callback();
  auto result = measure_importance(*loaded.model, request, imatrix.options);
  bar.clear();
  if (!result.ok()) return finish(*loaded.engine, report(result.error()));
  for (const Json& warning : result->at("warnings")) print_warning(warning.get<std::string>());
  if (imatrix.json) {
    write_json(*result);
  } else {
    write_out(summary(*result));
  }
  return finish(*loaded.engine, kDone);
}

}  // namespace cutaway::cli
