// cutaway rm: removes an installed model.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/output.h"
#include "cutaway/model_store.h"

namespace cutaway::cli {

int rm_command(int argc, char** argv) {
  Args args("cutaway rm", "Removes an installed model.");
  std::optional<std::string> name;
  args.positional("NAME", name, "A name that `cutaway list` shows");
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  if (!name) return args.wrong_usage("NAME is missing");
  if (const Status removed = ModelStore().remove(*name); !removed.ok()) {
    return report(removed.error());
  }
  return kDone;
}

}  // namespace cutaway::cli
