#include "formats/open.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "formats/gguf.h"
#include "formats/sniff.h"
#include "formats/split.h"
#include "trace/trace.h"

namespace cutaway::formats {
namespace {

namespace fs = std::filesystem;

// What a folder is, and which files of it could be opened instead.
Error folder_error(const std::string& path) {
  std::vector<std::string> ggufs;
  bool has_config = false;
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    const fs::path& entry = it->path();
    if (entry.filename() == "config.json") has_config = true;
    if (entry.extension() == ".gguf") ggufs.push_back(entry.filename().string());
  }
  std::sort(ggufs.begin(), ggufs.end());
  std::string message = path + " is a folder";
  if (has_config) message += " with a config.json: Hugging Face and MLX folders are not read yet";
  message += "; give a .gguf file";
  if (!ggufs.empty()) {
    message += fmt::format(" (it holds {}{})", in_quotes(ggufs[0]),
                           ggufs.size() > 1 ? fmt::format(" and {} more", ggufs.size() - 1) : "");
  }
  return {has_config ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument, message, "path"};
}

}  // namespace

Result<std::shared_ptr<const ModelFile>> open_model_file(const std::string& path) {
  CUTAWAY_SPAN(span, "formats::open_model_file", "path", path);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return folder_error(path);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    return Error{ErrorCode::kInvalidArgument, path + " is not a regular file; give a .gguf file",
                 "path"};
  }
  CUTAWAY_ASSIGN(InputFile input, InputFile::open(path));
  std::vector<uint8_t> head(std::min<uint64_t>(input.size(), 4096));
  CUTAWAY_TRY(input.read(0, head));
  const Sniffed found = sniff(head);
  if (found.kind == FileKind::kSafetensors) {
    return Error{ErrorCode::kUnsupported,
                 path + " is a safetensors file, which is not read yet; give a .gguf file", "path"};
  }
  if (found.kind != FileKind::kGguf) {
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("{} is {}; expected a GGUF file", path, found.description), "magic"};
  }
  CUTAWAY_ASSIGN(std::shared_ptr<ModelFile> opened, open_gguf_shard(path));
  CUTAWAY_ASSIGN(const bool one_of_several, is_shard(*opened));
  std::shared_ptr<const ModelFile> file = opened;
  if (one_of_several) {
    CUTAWAY_ASSIGN(file, open_shards(std::move(opened)));
  }
  CUTAWAY_OUT(span, "format", file->format, "tensors", file->tensors.size(), "bytes",
              file->total_bytes());
  return file;
}

}  // namespace cutaway::formats
