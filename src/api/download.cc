#include "api/download.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "api/package.h"
#include "api/retries.h"
#include "base/json.h"
#include "formats/sniff.h"
#include "trace/trace.h"

namespace cutaway::api {
namespace {

constexpr uint64_t kHead = 4096;  // what a file's kind is known from
constexpr int kMaxRestarts = 3;   // from the first byte, within one call
constexpr size_t kMaxText = size_t{32} << 20;

Error io_error(const std::string& what, int error) {
  return Error{ErrorCode::kIo, fmt::format("{}: {}", what, std::strerror(error))};
}

std::optional<uint64_t> number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return {};
  return value;
}

// "bytes 100-199/1000", "bytes */1000".
struct ContentRange {
  std::optional<uint64_t> begin, total;
};
ContentRange parse_content_range(std::string_view text) {
  ContentRange out;
  if (!text.starts_with("bytes ")) return out;
  text.remove_prefix(6);
  const size_t slash = text.find('/');
  if (slash == text.npos) return out;
  out.total = number(text.substr(slash + 1));
  out.begin = number(text.substr(0, std::min(text.find('-'), slash)));
  return out;
}

// What the part on disk is a part of. Beside it, in JSON.
struct PartState {
  std::string source, etag, last_modified, sha256;
  std::optional<uint64_t> bytes;

  // What If-Range takes: a weak ETag does not promise equal bytes.
  std::string validator() const {
    if (!etag.empty() && !etag.starts_with("W/")) return etag;
    return last_modified;
  }
  bool is_of(const DownloadSource& wanted) const {
    return source == wanted.shown && (!wanted.bytes || wanted.bytes == bytes) &&
           sha256 == wanted.sha256 && (!sha256.empty() || !validator().empty());
  }
};

std::string state_path(const std::string& path) { return path + ".json"; }

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

PartState read_state(const std::string& path) {
  std::ifstream file(state_path(path), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto json = parse_json(text);
  PartState out;
  if (!json.ok() || !json->is_object()) return out;
  out.source = text_of(*json, "source");
  out.etag = text_of(*json, "etag");
  out.last_modified = text_of(*json, "last_modified");
  out.sha256 = text_of(*json, "sha256");
  const auto bytes = json->find("bytes");
  if (bytes != json->end() && bytes->is_number_unsigned()) out.bytes = bytes->get<uint64_t>();
  return out;
}

Status write_state(const std::string& path, const PartState& state) {
  Json json = {{"source", state.source},
               {"etag", state.etag},
               {"last_modified", state.last_modified},
               {"sha256", state.sha256}};
  if (state.bytes) json["bytes"] = *state.bytes;
  const std::string temporary = state_path(path) + ".new";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << to_text(json) << "\n";
  file.close();
  if (!file || std::rename(temporary.c_str(), state_path(path).c_str()) != 0) {
    return io_error(fmt::format("cannot write '{}'", state_path(path)), errno);
  }
  return {};
}

class Transfer {
 public:
  Transfer(const DownloadSource& source, const std::string& path, const ProgressFn& progress)
      : source_(source), path_(path), progress_(progress) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer() {
    if (fd_ >= 0) ::close(fd_);
  }

  Result<Downloaded> run() {
    have_ = resumable_bytes(source_, path_);
    state_ = have_ > 0 ? read_state(path_) : PartState{};
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd_ < 0) return io_error(fmt::format("cannot write '{}'", path_), errno);
    CUTAWAY_TRY(cut_to(have_));
    expected_ = source_.bytes ? source_.bytes : state_.bytes;
    for (bool again = false;; again = true) {
      const bool resumed = have_ > 0;
      auto done = fetch_and_check();
      if (done.ok() || done.error().code != ErrorCode::kInvalidFile) return done;
      CUTAWAY_TRY(discard());
      // The part may have been of other bytes than the rest: once more, from the start.
      if (!resumed || again) return done;
    }
  }

 private:
  Result<Downloaded> fetch_and_check() {
    CUTAWAY_TRY(fetch());
    CUTAWAY_TRY(sniff_head());
    if (expected_ && have_ != *expected_) return wrong_size(have_);
    if (::fsync(fd_) != 0) return io_error(fmt::format("cannot write '{}'", path_), errno);
    CUTAWAY_ASSIGN(const std::string sha256, sha256_of_file(path_, progress_));
    if (!source_.sha256.empty() && sha256 != source_.sha256) {
      return Error{ErrorCode::kInvalidFile, fmt::format("{} has the SHA-256 {}, expected {}",
                                                        source_.shown, sha256, source_.sha256)};
    }
    return Downloaded{have_, sha256};
  }

  Error wrong_size(uint64_t found) const {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("{} has {} bytes, expected {}", source_.shown, found, *expected_)};
  }

  Status cut_to(uint64_t bytes) {
    have_ = bytes;
    sniffed_ = false;
    if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) {
      return io_error(fmt::format("cannot write '{}'", path_), errno);
    }
    return {};
  }

  Status discard() {
    ::unlink(state_path(path_).c_str());
    state_ = {};
    expected_ = source_.bytes;
    return cut_to(0);
  }

  bool report() { return !progress_ || progress_({"download", have_, expected_.value_or(0)}); }

  Status fetch() {
    Retries retries(source_, [this](const std::string& what) {
      return !progress_ || progress_({what, have_, expected_.value_or(0)});
    });
    for (int restarts = 0; !expected_ || have_ < *expected_;) {
      const uint64_t before = have_;
      restart_ = false;
      const HttpOutcome out = request();
      if (restart_ || (out.fault == HttpFault::kNone && out.response.status == 416)) {
        // What is kept is no part of what is there now.
        if (before == 0 || ++restarts > kMaxRestarts) return status_error(out.response, source_);
        CUTAWAY_TRY(discard());
        continue;
      }
      const bool success = out.response.status >= 200 && out.response.status < 300;
      // All that the server has, be it what was announced or not: the checks will tell.
      const auto all = announced_ ? announced_ : expected_;
      if (out.fault == HttpFault::kNone && success && (!all || have_ >= *all)) break;
      CUTAWAY_TRY(retries.after(out, have_ > before));
    }
    return {};
  }

  HttpOutcome request() {
    HttpRequest request = plain_request(source_);
    if (have_ > 0) {
      request.headers.emplace_back("Range", fmt::format("bytes={}-", have_));
      const std::string validator = state_.validator();
      if (!validator.empty()) request.headers.emplace_back("If-Range", validator);
    }
    HttpHandlers handlers;
    handlers.on_response = [this](const HttpResponse& r) { return begin(r); };
    handlers.on_body = [this](std::span<const uint8_t> bytes) { return append(bytes); };
    handlers.keep_going = [this] { return report(); };
    return http_get(request, handlers);
  }

  // The headers are there: where the body goes, and how long the file will be.
  Status begin(const HttpResponse& response) {
    const HttpHeaders& headers = response.headers;
    std::optional<uint64_t> total = number(headers.get("content-length"));
    if (response.status == 206) {
      const ContentRange range = parse_content_range(headers.get("content-range"));
      const std::string etag = headers.get("etag");
      if (range.begin != have_ || (!state_.etag.empty() && etag != state_.etag)) {
        restart_ = true;
        return Error{ErrorCode::kNetwork, source_.shown + ": another range than asked for"};
      }
      total = range.total;
    } else if (have_ > 0) {
      CUTAWAY_TRY(cut_to(0));  // the server knows no ranges, or has another file by now
    }
    state_ = {source_.shown, headers.get("etag"), headers.get("last-modified"), source_.sha256,
              total ? total : source_.bytes};
    if (!source_.bytes) expected_ = total;
    // A page that says "log in" comes with its own length: what it is says more than its size.
    announced_ = total;
    if (expected_ && source_.check_room) CUTAWAY_TRY(source_.check_room(*expected_ - have_));
    return write_state(path_, state_);
  }

  Status append(std::span<const uint8_t> bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t n =
          ::pwrite(fd_, bytes.data() + at, bytes.size() - at, static_cast<off_t>(have_ + at));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return io_error(fmt::format("cannot write '{}'", path_), errno);
      at += static_cast<size_t>(n);
    }
    have_ += bytes.size();
    if (have_ >= kHead) CUTAWAY_TRY(sniff_head());
    if (expected_ && have_ > *expected_) return wrong_size(have_);
    if (!report()) return Error{ErrorCode::kCancelled, "the download was cancelled"};
    return {};
  }

  // Once: whether this is a model at all, and as long as was said.
  Status sniff_head() {
    if (sniffed_) return {};
    sniffed_ = true;
    std::vector<uint8_t> head(std::min(kHead, have_));
    const ssize_t n = ::pread(fd_, head.data(), head.size(), 0);
    if (n < 0) return io_error(fmt::format("cannot read '{}'", path_), errno);
    const formats::Sniffed found = formats::sniff(std::span(head).first(static_cast<size_t>(n)));
    if (found.kind != formats::FileKind::kGguf) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("{} is {}; expected a GGUF file", source_.shown, found.description)};
    }
    if (announced_ && expected_ && *announced_ != *expected_) return wrong_size(*announced_);
    return {};
  }

  const DownloadSource& source_;
  const std::string& path_;
  const ProgressFn& progress_;
  int fd_ = -1;
  uint64_t have_ = 0;  // bytes of the file that are on disk
  std::optional<uint64_t> expected_, announced_;
  PartState state_;
  bool sniffed_ = false, restart_ = false;
};

// <URL>; rel="next"
std::string next_link(const std::string& link) {
  for (size_t begin = link.find('<'); begin != link.npos; begin = link.find('<', begin + 1)) {
    const size_t end = link.find('>', begin);
    if (end == link.npos) break;
    const size_t stop = std::min(link.find('<', end), link.size());
    if (link.substr(end, stop - end).find("rel=\"next\"") != link.npos) {
      return link.substr(begin + 1, end - begin - 1);
    }
  }
  return "";
}

}  // namespace

uint64_t resumable_bytes(const DownloadSource& source, const std::string& path) {
  CUTAWAY_SPAN(span, "api::resumable_bytes", "source", source.shown, "path", path);
  struct stat file;
  uint64_t bytes = 0;
  if (::lstat(path.c_str(), &file) == 0 && S_ISREG(file.st_mode)) {
    bytes = static_cast<uint64_t>(file.st_size);
  }
  const PartState state = bytes > 0 ? read_state(path) : PartState{};
  if (!state.is_of(source) || (state.bytes && bytes > *state.bytes)) bytes = 0;
  CUTAWAY_OUT(span, "bytes", bytes);
  return bytes;
}

Result<Downloaded> download_file(const DownloadSource& source, const std::string& path,
                                 const ProgressFn& progress) {
  CUTAWAY_SPAN(span, "api::download_file", "source", source.shown, "path", path);
  CUTAWAY_ASSIGN(Downloaded done, Transfer(source, path, progress).run());
  CUTAWAY_OUT(span, "bytes", done.bytes, "sha256", done.sha256);
  return done;
}

Result<FetchedText> fetch_text(const DownloadSource& source, const ProgressFn& progress) {
  CUTAWAY_SPAN(span, "api::fetch_text", "source", source.shown);
  const auto ask = [&](const std::string& what) { return !progress || progress({what, 0, 0}); };
  Retries retries(source, ask);
  for (;;) {
    FetchedText out;
    HttpHandlers handlers;
    handlers.on_body = [&](std::span<const uint8_t> bytes) -> Status {
      if (out.text.size() + bytes.size() > kMaxText) {
        return Error{ErrorCode::kNetwork, source.shown + ": the answer is too long"};
      }
      out.text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return {};
    };
    handlers.keep_going = [&] { return ask("ask"); };
    const HttpOutcome outcome = http_get(plain_request(source), handlers);
    if (outcome.fault == HttpFault::kNone && outcome.response.status == 200) {
      out.next = next_link(outcome.response.headers.get("link"));
      CUTAWAY_OUT(span, "bytes", out.text.size(), "next", out.next);
      return out;
    }
    CUTAWAY_TRY(retries.after(outcome, false));
  }
}

}  // namespace cutaway::api
