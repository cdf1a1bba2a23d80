// cutaway pull: installs a model.
#include <fmt/format.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "cutaway/model_store.h"

namespace cutaway::cli {
namespace {

std::string footer(const ModelStore& store) {
  std::string text =
      "SOURCE is a built-in name (below), or\n"
      "  hf:OWNER/REPO[@REVISION][:FILE]   a repository of a Hugging Face hub\n"
      "  http://… or https://…             a GGUF file, or any shard of one\n"
      "FILE is a path, a file's name or a type such as Q8_0; without it the only\n"
      "model of the repository is taken, else the one of type Q4_K_M. An interrupted\n"
      "pull goes on where it stopped. HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and the\n"
      "environment's proxies are honoured (docs/models-on-disk.md).\n"
      "Built in:\n";
  for (const BuiltInModel& model : store.built_in()) {
    text += fmt::format("  {:<22} {}, {}, {}\n", model.name, model.description,
                        human_bytes(static_cast<double>(model.bytes)), model.licence);
  }
  return text + "Pulling a model that is there already does nothing.";
}

}  // namespace

int pull_command(int argc, char** argv) {
  Args args("cutaway pull", "Installs a model into $CUTAWAY_HOME/models.");
  ModelStore store;
  std::optional<std::string> source, name, sha256;
  bool json = false;
  args.positional("SOURCE", source, "Where the model comes from");
  args.text("--name", name, "NAME", "Install it under this name (default: its file's name)");
  args.text("--sha256", sha256, "HEX", "The SHA-256 that the file must have");
  args.flag("--json", json, "One JSON document on stdout");
  args.footer(footer(store));
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  if (!source) return args.wrong_usage("SOURCE is missing");

  interrupt_on_termination();
  ProgressBar bar(0);
  auto installed = store.pull(*source, bar.callback(), {name.value_or(""), sha256.value_or("")});
  bar.clear();
  if (!installed.ok()) return report(installed.error());
  if (json) {
    write_json(installed_json(*installed));
  } else {
    write_out(fmt::format("{} {} {}\n", printable(installed->name),
                          human_bytes(static_cast<double>(installed->bytes)),
                          printable(installed->path)));
  }
  return end_output(kDone);
}

}  // namespace cutaway::cli
