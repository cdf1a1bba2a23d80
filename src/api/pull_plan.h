// From what the user wrote to the files that a pull fetches.
#pragma once

#include <string>
#include <vector>

#include "api/built_in.h"
#include "api/download.h"
#include "base/result.h"
#include "cutaway/model_store.h"

namespace cutaway::api {

struct PullPart {
  DownloadSource source;
  std::string file_name;  // on this machine
};

struct PullPlan {
  std::string name;    // under which it is installed
  std::string source;  // what is recorded: hf:OWNER/REPO:PATH or a URL, without secrets
  std::vector<PullPart> parts;
  uint64_t bytes = 0;  // of all parts; 0: not known
};

// Asks the hub what there is, for hf: and for URLs of the hub; fetches no model. Errors: those of
// parse_hub_source, list_hub_files, choose_hub_model; kInvalidArgument for a URL, a name or a
// sha256 that is none.
Result<PullPlan> plan_pull(const std::string& source, const PullOptions& options,
                           const ProgressFn& progress);
// A built-in model from its hub: nothing needs to be asked.
Result<PullPlan> plan_built_in(const BuiltInSource& source);

// "hf:…", "http://…" or "https://…".
bool is_remote_source(const std::string& text);

}  // namespace cutaway::api
