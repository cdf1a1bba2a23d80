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
  if (json) {
    Json list = Json::array();
    for (const InstalledModel& m : models) {
      Json item = {{"name", m.name}, {"path", m.path}, {"bytes", m.bytes}};
      if (!m.sha256.empty()) item["sha256"] = m.sha256;
      list.push_back(std::move(item));
    }
    write_json({{"home", store.home()}, {"models", list}});
    return end_output(kDone);
  }
  if (models.empty()) {
    print_error(fmt::format("No model is installed in {}/models; `cutaway pull {}` gets one.",
                            store.home(), kDefaultModel));
    return kDone;
  }
  size_t width = 4;
  for (const InstalledModel& m : models) width = std::max(width, display_width(printable(m.name)));
  for (const InstalledModel& m : models) {
    write_out(fmt::format("{}  {:>9}  {}\n", fit(printable(m.name), width),
                          human_bytes(static_cast<double>(m.bytes)), printable(m.path)));
  }
  return end_output(kDone);
}

}  // namespace cutaway::cli
