#include "api/output_file.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <filesystem>

#include "trace/trace.h"

namespace cutaway::api {

namespace fs = std::filesystem;

Status check_output(const std::string& output, bool overwrite) {
  CUTAWAY_SPAN(span, "api::check_output", "output", output, "overwrite", overwrite);
  if (output.empty()) {
    return Error{ErrorCode::kInvalidArgument, "output is empty; it takes the path of a file",
                 "output"};
  }
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(output, error))) {
    return Error{ErrorCode::kIo,
                 fmt::format("{} is a symbolic link, which would be replaced by the file; name the "
                             "file itself",
                             output),
                 "output"};
  }
  const fs::file_status status = fs::status(output, error);
  if (!fs::exists(status)) return {};  // or may not be looked at: writing will tell
  if (!fs::is_regular_file(status)) {
    return Error{ErrorCode::kIo, fmt::format("{} exists and is not a regular file", output),
                 "output"};
  }
  if (!overwrite) {
    return Error{ErrorCode::kIo,
                 fmt::format("{} exists; --force replaces it, another name keeps it", output),
                 "output"};
  }
  return {};
}

Status check_space(const std::string& output, uint64_t needed) {
  CUTAWAY_SPAN(span, "api::check_space", "output", output, "needed", needed);
  const fs::path parent = fs::path(output).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  struct statvfs disk{};
  if (::statvfs(folder.c_str(), &disk) != 0) return {};  // writing will tell
  const uint64_t free = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  CUTAWAY_OUT(span, "free", free);
  if (free >= needed) return {};
  return Error{ErrorCode::kIo,
               fmt::format("not enough room for {}: {} bytes are needed, {} bytes are free in '{}'",
                           output, needed, free, folder),
               "output"};
}

}  // namespace cutaway::api
