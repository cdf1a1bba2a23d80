#include "api/store_layout.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "formats/shard_name.h"
#include "trace/trace.h"

namespace cutaway::api {
namespace {

namespace fs = std::filesystem;

constexpr useconds_t kLockPollUs = 100'000;
constexpr size_t kLongestName = 200;  // bytes; file systems take 255, with what is added

Error io_error(const std::string& what, const std::string& reason) {
  return Error{ErrorCode::kIo, fmt::format("{}: {}", what, reason)};
}

bool is_sha256(const std::string& hex) {
  return hex.size() == 64 && hex.find_first_not_of("0123456789abcdef") == hex.npos;
}

uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  return error ? 0 : bytes;
}

// The models of one folder that lie in shards: by prefix. A set without its first shard is no
// model that could be opened, and none with others missing.
void add_shard_sets(const std::map<std::string, std::vector<std::string>>& sets,
                    const std::string& source, std::vector<InstalledModel>& out) {
  for (const auto& [key, files] : sets) {
    const auto first = formats::parse_shard_name(files.front());
    if (first->no != 1 || static_cast<int64_t>(files.size()) != first->count) continue;
    InstalledModel model;
    model.name = fs::path(first->prefix).filename().string();
    if (!check_model_name(model.name).ok()) continue;
    model.path = files.front();
    for (const std::string& file : files) model.bytes += size_of(file);
    model.files = files;
    model.source = source;
    out.push_back(std::move(model));
  }
}

// The .gguf files of one folder. Of `shards_only`, those that are no shard are left out.
void add_models(const std::string& folder, bool shards_only, std::vector<InstalledModel>& out) {
  std::map<std::string, std::vector<std::string>> sets;
  std::error_code error;
  auto it = fs::directory_iterator(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string path = it->path().string();
    std::error_code ignored;
    if (it->path().extension() != kModelExtension || !it->is_regular_file(ignored)) continue;
    if (const auto shard = formats::parse_shard_name(path); shard) {
      sets[fmt::format("{}/{}", shard->prefix, shard->count)].push_back(path);
      continue;
    }
    const std::string name = it->path().stem().string();
    if (shards_only || !check_model_name(name).ok()) continue;
    out.push_back({name,
                   path,
                   size_of(path),
                   recorded_sha256(path + ".sha256", it->path().filename().string()),
                   read_record(path + "." + kSourceRecord),
                   {path}});
  }
  for (auto& [key, files] : sets) std::sort(files.begin(), files.end());
  add_shard_sets(sets, shards_only ? read_record(folder + "/" + kSourceRecord) : "", out);
}

}  // namespace

Status check_model_name(const std::string& name) {
  CUTAWAY_SPAN(span, "api::check_model_name", "name", name);
  const bool control =
      std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos || control) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("'{}' is not a model's name: names have no '/', no leading '.' and no "
                             "control characters",
                             name),
                 "name"};
  }
  if (name.size() > kLongestName) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("'{}…' is not a model's name: it has {} bytes, at most {} are accepted",
                    name.substr(0, 40), name.size(), kLongestName),
        "name"};
  }
  CUTAWAY_OUT(span, "ok", true);
  return {};
}

std::string read_record(const std::string& path) {
  CUTAWAY_SPAN(span, "api::read_record", "path", path);
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  CUTAWAY_OUT(span, "line", line);
  return line;
}

std::string recorded_sha256(const std::string& record_path, const std::string& file_name) {
  CUTAWAY_SPAN(span, "api::recorded_sha256", "path", record_path);
  std::ifstream file(record_path);
  std::string found;
  for (std::string line; std::getline(file, line);) {
    const std::string hex = line.substr(0, line.find(' '));
    // A record with the hash alone is accepted too.
    if (is_sha256(hex) && (line == hex || line.ends_with("  " + file_name))) found = hex;
  }
  CUTAWAY_OUT(span, "sha256", found);
  return found;
}

std::vector<InstalledModel> installed_models(const std::string& models) {
  CUTAWAY_SPAN(span, "api::installed_models", "folder", models);
  std::vector<InstalledModel> out;
  add_models(models, false, out);
  std::error_code error;
  auto it = fs::directory_iterator(models, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    const bool hidden = it->path().filename().string().starts_with('.');
    if (!hidden && it->is_directory(ignored)) add_models(it->path().string(), true, out);
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  CUTAWAY_OUT(span, "n", out.size());
  return out;
}

std::vector<UnfinishedPull> unfinished_pulls(const std::string& models) {
  CUTAWAY_SPAN(span, "api::unfinished_pulls", "folder", models);
  std::vector<UnfinishedPull> out;
  std::error_code error;
  auto it = fs::directory_iterator(models, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (!name.starts_with(kResumePrefix) || !it->is_directory(ignored)) continue;
    UnfinishedPull pull;
    pull.name = name.substr(std::strlen(kResumePrefix));
    pull.path = it->path().string();
    pull.source = read_record(pull.path + "/" + kSourceRecord);
    auto part = fs::directory_iterator(it->path(), ignored);
    for (; !ignored && part != fs::directory_iterator(); part.increment(ignored)) {
      if (part->path().extension() == kModelExtension) pull.bytes += size_of(part->path());
    }
    out.push_back(std::move(pull));
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  CUTAWAY_OUT(span, "n", out.size());
  return out;
}

Status remove_model(const InstalledModel& model, const std::string& models) {
  CUTAWAY_SPAN(span, "api::remove_model", "name", model.name);
  std::error_code error, ignored;
  const auto failed = [&](const std::string& path) {
    return io_error(fmt::format("cannot remove '{}'", path), error.message());
  };
  const fs::path folder = fs::path(model.path).parent_path();
  const bool own_folder = folder != fs::path(models) && folder.filename() == model.name &&
                          fs::exists(folder / kShardHashes, ignored);
  if (own_folder) {
    // Under a name that nobody opens first: a model is there whole or not at all.
    PartialFolder bin;
    CUTAWAY_TRY(bin.create(models));
    fs::rename(folder, bin.path() + "/shards", error);
    if (error) return failed(folder.string());
    fs::remove_all(bin.path() + "/shards", error);
    if (error) return failed(folder.string());
    CUTAWAY_OUT(span, "folder", folder.string());
    return {};
  }
  for (const std::string& path : model.files) {
    if (!fs::remove(path, error) && error) return failed(path);
    fs::remove(path + ".sha256", ignored);  // may not be there
    fs::remove(path + "." + kSourceRecord, ignored);
  }
  if (folder != fs::path(models)) fs::remove(folder, ignored);  // when nothing else is in it
  CUTAWAY_OUT(span, "files", model.files.size());
  return {};
}

Error unwritable(const std::string& folder, const std::string& reason) {
  CUTAWAY_SPAN(span, "api::unwritable", "folder", folder, "reason", reason);
  return io_error(fmt::format("cannot write to '{}'", folder),
                  reason + "; CUTAWAY_HOME can name another folder");
}

PullLock::~PullLock() {
  if (fd_ >= 0) ::close(fd_);
}

Status PullLock::take(const std::string& folder, const ProgressFn& progress, bool wait) {
  CUTAWAY_SPAN(span, "api::PullLock::take", "folder", folder, "wait", wait);
  const std::string path = folder + "/.pull.lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) return unwritable(folder, std::strerror(errno));
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return io_error(fmt::format("cannot lock '{}'", path), std::strerror(errno));
    }
    if (!wait) return io_error(fmt::format("cannot lock '{}'", path), "a pull is running");
    if (progress && !progress({"waiting for another pull", 0, 0})) {
      return Error{ErrorCode::kCancelled, "waiting for another pull was cancelled"};
    }
    ::usleep(kLockPollUs);
  }
  CUTAWAY_OUT(span, "locked", true);
  return {};
}

PartialFolder::~PartialFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

Status PartialFolder::create(const std::string& parent) {
  CUTAWAY_SPAN(span, "api::PartialFolder::create", "parent", parent);
  std::string name = parent + "/" + kPartialPrefix + "XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) return unwritable(parent, std::strerror(errno));
  path_ = name;
  CUTAWAY_OUT(span, "path", path_);
  return {};
}

void remove_leftovers(const std::string& folder) {
  CUTAWAY_SPAN(span, "api::remove_leftovers", "folder", folder);
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    if (it->path().filename().string().starts_with(kPartialPrefix)) leftovers.push_back(it->path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
  CUTAWAY_OUT(span, "n", leftovers.size());
}

Status check_disk(const std::string& folder, uint64_t bytes, const std::string& what) {
  CUTAWAY_SPAN(span, "api::check_disk", "folder", folder, "bytes", bytes);
  struct statvfs disk;
  if (::statvfs(folder.c_str(), &disk) != 0) return {};  // writing will tell
  const uint64_t free = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  CUTAWAY_OUT(span, "free", free);
  if (free >= bytes) return {};
  return Error{ErrorCode::kIo,
               fmt::format("not enough room in '{}': {} needs {} MB, {} MB are free", folder, what,
                           (bytes + 999'999) / 1'000'000, free / 1'000'000)};
}

Status sync_folder(const std::string& folder) {
  CUTAWAY_SPAN(span, "api::sync_folder", "folder", folder);
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return io_error(fmt::format("cannot open '{}'", folder), std::strerror(errno));
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  if (result != 0) return io_error(fmt::format("cannot sync '{}'", folder), std::strerror(error));
  CUTAWAY_OUT(span, "ok", true);
  return {};
}

void write_record(const std::string& path, const std::string& text) {
  CUTAWAY_SPAN(span, "api::write_record", "path", path);
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return;
  fmt::print(file, "{}\n", text);
  std::fclose(file);
}

}  // namespace cutaway::api
