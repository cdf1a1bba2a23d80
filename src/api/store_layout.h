// How models lie in $CUTAWAY_HOME/models. docs/models-on-disk.md describes it for people.
//
//   NAME.gguf, NAME.gguf.sha256, NAME.gguf.source   a model of one file
//   NAME/NAME-00001-of-00003.gguf …, NAME/sha256, NAME/source   a model in shards
//   .resume-NAME/                                   what a download that was interrupted has got
//   .partial-XXXXXX/                                work in progress, worthless once its pull ended
//   .pull.lock                                      held by the pull that runs
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cutaway/model_store.h"
#include "cutaway/options.h"

namespace cutaway::api {

inline constexpr const char* kModelExtension = ".gguf";
inline constexpr const char* kResumePrefix = ".resume-";
inline constexpr const char* kPartialPrefix = ".partial-";
inline constexpr const char* kShardHashes = "sha256";  // in a folder of shards, for `sha256sum -c`
inline constexpr const char* kSourceRecord = "source";

// A name is one path component that does not hide and leaves room for what is added to it. Error
// kInvalidArgument.
Status check_model_name(const std::string& name);

// What a pull recorded, on one line; empty when there is no such file.
std::string read_record(const std::string& path);
// "HEX  FILE" lines, as `sha256sum -c` reads them; of one file, or of a folder's.
std::string recorded_sha256(const std::string& record_path, const std::string& file_name);

// Everything that is installed in `models`, sorted by name.
std::vector<InstalledModel> installed_models(const std::string& models);
std::vector<UnfinishedPull> unfinished_pulls(const std::string& models);

// Removes its files and records; a folder that a pull made for its shards as a whole, at once.
// Error kIo.
Status remove_model(const InstalledModel& model, const std::string& models);

Error unwritable(const std::string& folder, const std::string& reason);

// One pull at a time for each home. Released when destroyed, and by the system when we die.
class PullLock {
 public:
  PullLock() = default;
  PullLock(const PullLock&) = delete;
  PullLock& operator=(const PullLock&) = delete;
  ~PullLock();

  // Waits for another pull, asking `progress`; without `wait` that is an error at once.
  Status take(const std::string& folder, const ProgressFn& progress, bool wait = true);

 private:
  int fd_ = -1;
};

// A folder for the parts of one pull, removed with everything in it.
class PartialFolder {
 public:
  PartialFolder() = default;
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder();

  Status create(const std::string& parent);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The caller holds the lock, so whatever is there belongs to nobody.
void remove_leftovers(const std::string& folder);

// Error kIo when the disk of `folder` has no room for `bytes` more: names `what` needs them.
Status check_disk(const std::string& folder, uint64_t bytes, const std::string& what);

Status sync_folder(const std::string& folder);
// A small file that may be lost: the model is in place without it.
void write_record(const std::string& path, const std::string& text);

}  // namespace cutaway::api
