// cutaway list: the installed models.
#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "cutaway/model_store.h"

namespace cutaway::cli {

int list_command(int argc, char** argv) {
  Args args("cutaway list", "Lists the installed models.");
  bool json = false;
  args.flag("--json", json, "One JSON document on stdout");
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  const ModelStore store;
  const std::vector<InstalledModel> models = store.list();
  const std::vector<UnfinishedPull> unfinished = store.unfinished();
  if (json) {
    Json list = Json::array(), parts = Json::array();
    for (const InstalledModel& m : models) list.push_back(installed_json(m));
    for (const UnfinishedPull& p : unfinished) {
      parts.push_back(
          {{"name", p.name}, {"source", p.source}, {"path", p.path}, {"bytes", p.bytes}});
    }
    write_json({{"home", store.home()}, {"models", list}, {"unfinished", parts}});
    return end_output(kDone);
  }
  if (models.empty()) {
    print_error(fmt::format("No model is installed in {}/models; `cutaway pull {}` gets one.",
                            store.home(), kDefaultModel));
  }
  size_t width = 4;
  for (const InstalledModel& m : models) width = std::max(width, display_width(printable(m.name)));
  for (const InstalledModel& m : models) {
    const std::string shards =
        m.files.size() > 1 ? fmt::format(" (and {} more shards)", m.files.size() - 1) : "";
    write_out(fmt::format("{}  {:>9}  {}{}\n", fit(printable(m.name), width),
                          human_bytes(static_cast<double>(m.bytes)), printable(m.path), shards));
  }
  for (const UnfinishedPull& p : unfinished) {
    print_error(
        fmt::format("Unfinished: {}, {} so far; `cutaway pull {}` goes on, `cutaway rm {}` "
                    "removes it.",
                    p.name, human_bytes(static_cast<double>(p.bytes)), p.source, p.name));
  }
  return end_output(kDone);
}

}  // namespace cutaway::cli
