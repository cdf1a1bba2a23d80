// Recordings from anywhere: an error that names the file, or a recording that, written again, reads
// as the same; and whatever stands in tensors.safetensors is tensors inside the file, or an error.
//
// Input: byte 0; then run.json, events.jsonl and tensors.safetensors with a byte 0 between them
// (the tensors may hold more of those). With an even first byte the sizes and hashes that protect a
// recording are made right: what is behind them gets a turn too.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/check.h"
#include "formats/safetensors_reader.h"
#include "inspect/recording.h"

using namespace cutaway;  // NOLINT

namespace {

namespace fs = std::filesystem;

// In memory where the system has such a place; removed at the end.
class Folder {
 public:
  Folder() {
    const fs::path shared = "/dev/shm";
    const fs::path parent = fs::is_directory(shared) ? shared : fs::temp_directory_path();
    path_ = parent / ("cutaway-fuzz-" + std::to_string(::getpid()));
    fs::create_directories(path_ / "in");
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

void write(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

std::string hash(std::string_view text) { return xxh3_128(text.data(), text.size()).hex(); }

// run.json with the sizes and hashes of its files, and its own; as it was where it is no object.
std::string sealed(std::string_view run, std::string_view events, std::string_view tensors,
                   bool with_tensors) {
  auto json = parse_json(run);
  if (!json.ok() || !json->is_object()) return std::string(run);
  Json files = {{"events.jsonl", {{"bytes", events.size()}, {"xxh3", hash(events)}}}};
  if (with_tensors) {
    files["tensors.safetensors"] = {{"bytes", tensors.size()}, {"xxh3", hash(tensors)}};
  }
  json->erase("xxh3");
  json->erase("files");
  (*json)["files"] = std::move(files);
  std::string text = to_text(*json, 2);
  text.resize(text.size() - 2);
  const std::string own = hash(text);
  return text + ",\n  \"xxh3\": \"" + own + "\"\n}\n";
}

std::string_view take(std::string_view& rest) {
  const size_t end = std::min(rest.find('\0'), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

void read_tensors(const std::string& path, size_t size) {
  const auto file = formats::SafetensorsFile::open(path);
  if (!file.ok()) {
    CUTAWAY_CHECK(!file.error().message.empty());
    return;
  }
  for (const auto& tensor : file->tensors()) {
    CUTAWAY_CHECK(tensor.begin <= size && tensor.bytes <= size - tensor.begin);
    const auto values = file->read(tensor);
    if (values.ok()) {
      CUTAWAY_CHECK(static_cast<int64_t>(values->size()) == tensor.elements());
    }
    CUTAWAY_CHECK(file->find(tensor.name).ok());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  if (size == 0) return 0;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string_view run = take(rest), events = take(rest);
  const bool with_tensors = !rest.empty();
  write(folder.file("in/run.json"),
        data[0] % 2 == 0 ? sealed(run, events, rest, with_tensors) : std::string(run));
  write(folder.file("in/events.jsonl"), events);
  std::error_code ignored;
  fs::remove(folder.file("in/tensors.safetensors"), ignored);
  if (with_tensors) {
    write(folder.file("in/tensors.safetensors"), rest);
    read_tensors(folder.file("in/tensors.safetensors"), rest.size());
  }
  // Lines of any kind, as a trace.
  write(folder.file("in/trace.jsonl"), events);
  const auto trace = inspect::read_trace(folder.file("in"), 64);
  CUTAWAY_CHECK(!trace.ok() || trace->count >= static_cast<int64_t>(trace->lines.size()));
  const auto recording = inspect::read_recording(folder.file("in"));
  if (!recording.ok()) {
    CUTAWAY_CHECK(recording.error().message.find(folder.file("in")) != std::string::npos);
    return 0;
  }
  CUTAWAY_CHECK(recording->n_layers >= 1);
  for (const auto& row : recording->layer_hashes) {
    CUTAWAY_CHECK(static_cast<int64_t>(row.size()) == recording->n_layers);
  }
  auto writer = inspect::RecordingWriter::create(folder.file("out"));
  CUTAWAY_CHECK(writer.ok() && writer->commit(*recording).ok());
  const auto again = inspect::read_recording(folder.file("out"));
  CUTAWAY_CHECK(again.ok());
  CUTAWAY_CHECK(again->run == recording->run && again->prompt == recording->prompt);
  CUTAWAY_CHECK(again->layer_hashes == recording->layer_hashes);
  CUTAWAY_CHECK(again->choices.size() == recording->choices.size());
  fs::remove_all(folder.file("out"), ignored);
  return 0;
}
