#include "base/whole_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace cutaway {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnd = ".part";

// Exactly the names that are made below: TARGET.PID.N.part
bool is_part_of(const std::string& name, const std::string& target) {
  if (name.size() <= target.size() + 1 + kEnd.size() || !name.starts_with(target) ||
      name[target.size()] != '.' || !name.ends_with(kEnd)) {
    return false;
  }
  const std::string_view middle = std::string_view(name).substr(
      target.size() + 1, name.size() - target.size() - 1 - kEnd.size());
  return std::count(middle.begin(), middle.end(), '.') == 1 &&
         middle.find_first_not_of("0123456789.") == std::string_view::npos;
}

// What earlier writers of the same target left that were killed: nobody holds its lock.
void remove_stale(const std::string& target) {
  const fs::path path(target);
  const std::string name = path.filename().string();
  const fs::path folder = path.parent_path().empty() ? "." : path.parent_path();
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (!is_part_of(it->path().filename().string(), name)) continue;
    const int fd = ::open(it->path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) continue;
    // Under the lock: a writer that waits for it then sees that its file has gone.
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlink(it->path().c_str());
    ::close(fd);
  }
}

// So that the new name survives a power cut too. A file system that cannot sync folders is no
// error.
void sync_folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

}  // namespace

Error WholeFile::failed() const {
  return {ErrorCode::kIo, fmt::format("cannot write {}: {}", target_, std::strerror(errno)),
          "output"};
}

bool WholeFile::open_part() {
  static std::atomic<uint32_t> counter{0};
  for (int tries = 0; tries < 16; ++tries) {
    part_ = fmt::format("{}.{}.{}{}", target_, ::getpid(), counter.fetch_add(1), kEnd);
    fd_ = ::open(part_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) return false;
    // Held until closed: somebody is writing this. Another writer may have come before the lock,
    // and taken the new file for a stale one.
    while (::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
    struct stat status{};
    if (::fstat(fd_, &status) != 0 || status.st_nlink > 0) return true;
    ::close(std::exchange(fd_, -1));
  }
  errno = EBUSY;
  return false;
}

Result<WholeFile> WholeFile::create(const std::string& target) {
  struct stat existing{};
  if (::stat(target.c_str(), &existing) == 0 && !S_ISREG(existing.st_mode)) {
    return Error{ErrorCode::kIo, target + " exists and is not a regular file", "output"};
  }
  remove_stale(target);
  WholeFile out(target);
  if (!out.open_part()) return out.failed();
  return out;
}

WholeFile::WholeFile(WholeFile&& other) noexcept
    : target_(std::move(other.target_)),
      part_(std::move(other.part_)),
      fd_(std::exchange(other.fd_, -1)),
      appended_(other.appended_),
      sent_(other.sent_) {}

WholeFile::~WholeFile() {
  if (fd_ < 0) return;
  if (!part_.empty()) ::unlink(part_.c_str());
  ::close(fd_);
}

Status WholeFile::append(const void* data, size_t size) {
  CUTAWAY_TRY(write_at(data, size, appended_));
  appended_ += static_cast<int64_t>(size);
  send_to_disk();
  return {};
}

Status WholeFile::write_at(const void* data, size_t size, int64_t offset) {
  const char* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::pwrite(fd_, from, std::min(size, size_t{1} << 30), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed();
    from += n;
    offset += n;
    size -= static_cast<size_t>(n);
  }
  return {};
}

Status WholeFile::extend(int64_t size) {
  if (::ftruncate(fd_, size) != 0) return failed();
  return {};
}

// The disk works while the next bytes are made: the sync at the end is short, and a large file does
// not fill the memory with pages that wait. A hint: where it fails, nothing is lost.
void WholeFile::send_to_disk() {
  constexpr int64_t kStep = int64_t{64} << 20;
  if (appended_ - sent_ < kStep) return;
  ::sync_file_range(fd_, sent_, appended_ - sent_, SYNC_FILE_RANGE_WRITE);
  sent_ = appended_;
}

Status WholeFile::publish(Existing existing, Durability durability) {
  const bool sync = durability == Durability::kSynced;
  if (sync && ::fsync(fd_) != 0) return failed();
  const bool replace = existing == Existing::kReplaced;
  if ((replace ? ::rename(part_.c_str(), target_.c_str())
               : ::renameat2(AT_FDCWD, part_.c_str(), AT_FDCWD, target_.c_str(),
                             RENAME_NOREPLACE)) != 0) {
    // A file system without that: a second name does not replace either. The first one goes.
    const bool unknown = !replace && (errno == EINVAL || errno == ENOSYS);
    if (!unknown || ::link(part_.c_str(), target_.c_str()) != 0) return failed();
    ::unlink(part_.c_str());
  }
  part_.clear();
  if (sync) sync_folder_of(target_);
  return {};
}

Status write_whole_file(const std::string& path, std::string_view text) {
  CUTAWAY_ASSIGN(WholeFile file, WholeFile::create(path));
  CUTAWAY_TRY(file.append(text.data(), text.size()));
  return file.publish();
}

}  // namespace cutaway
