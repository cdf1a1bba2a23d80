// cutaway pull: installs a model.
#include <fmt/format.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "cutaway/model_store.h"

namespace cutaway::cli {
namespace {

std::string built_in_list(const ModelStore& store) {
  std::string text = "Built in:\n";
  for (const BuiltInModel& model : store.built_in()) {
    text += fmt::format("  {:<16} {}, {}, {} ({})\n", model.name, model.description,
                        human_bytes(static_cast<double>(model.bytes)), model.licence, model.source);
  }
  return text + "Pulling a model that is there already does nothing.";
}

}  // namespace

int pull_command(int argc, char** argv) {
  Args args("cutaway pull", "Installs a model into $CUTAWAY_HOME/models.");
  ModelStore store;
  std::optional<std::string> name;
  bool json = false;
  args.positional("NAME", name, "A built-in model's name");
  args.flag("--json", json, "One JSON document on stdout");
  args.footer(built_in_list(store));
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  if (!name) return args.wrong_usage("NAME is missing");

  ProgressBar bar(0);
  auto installed = store.pull(*name, bar.callback());
  bar.clear();
  if (!installed.ok()) return report(installed.error());
  if (json) {
    write_json({{"name", installed->name},
                {"path", installed->path},
                {"bytes", installed->bytes},
                {"sha256", installed->sha256}});
  } else {
    write_out(fmt::format("{} {} {}\n", installed->name,
                          human_bytes(static_cast<double>(installed->bytes)), installed->path));
  }
  return end_output(kDone);
}

}  // namespace cutaway::cli
