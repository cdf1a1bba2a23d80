#include "inspect/recording.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/clock.h"
#include "base/whole_file.h"
#include "trace/trace.h"

namespace cutaway::inspect {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "cutaway-recording";
constexpr int64_t kVersion = 1;
constexpr const char* kRunFile = "run.json";
constexpr const char* kEventsFile = "events.jsonl";
constexpr const char* kTraceFile = "trace.jsonl";
constexpr const char* kTensorsFile = "tensors.safetensors";
constexpr const char* kInterventionsFile = "interventions.json";
constexpr const char* kPatchesFile = "interventions.safetensors";
// Those that run.json may list.
constexpr const char* kListedFiles[] = {kEventsFile, kTraceFile, kTensorsFile, kInterventionsFile,
                                        kPatchesFile};
constexpr uintmax_t kMostBytes = uintmax_t{1} << 32;  // of run.json or events.jsonl
// run.json ends with its own hash, over everything before these characters.
constexpr std::string_view kHashMark = ",\n  \"xxh3\": \"";
constexpr std::string_view kEnd = "\"\n}\n";

// ---- writing -----------------------------------------------------------------------------------

Status write_file(const std::string& path, std::string_view text) {
  const Status written = write_whole_file(path, text);
  if (written.ok()) return {};
  return Error{written.error().code, written.error().message, "record"};
}

std::string hex64(uint64_t value) { return fmt::format("{:016x}", value); }

std::string events_text(const Recording& recording) {
  std::string out;
  for (size_t i = 0; i < recording.layer_hashes.size(); ++i) {
    Json layers = Json::array();
    for (const uint64_t hash : recording.layer_hashes[i]) layers.push_back(hex64(hash));
    out += to_text({{"kind", "hashes"},
                    {"position", recording.first_hashed + static_cast<int64_t>(i)},
                    {"resid_post", std::move(layers)}});
    out += '\n';
  }
  const auto prompt = static_cast<int64_t>(recording.prompt.size());
  for (size_t i = 0; i < recording.choices.size(); ++i) {
    const RecordedChoice& choice = recording.choices[i];
    out += to_text({{"kind", "sample"},
                    {"step", i},
                    {"position", prompt + static_cast<int64_t>(i)},
                    {"id", choice.id},
                    {"piece", choice.piece},
                    {"ms", choice.ms},
                    {"logits_xxh3", choice.logits.hex()},
                    {"ledger", choice.ledger}});
    out += '\n';
  }
  return out;
}

std::string run_text(const Recording& recording, const Json& files) {
  Json run = {{"format", kFormat}, {"version", kVersion}};
  run.update(recording.run);
  run["layers"] = recording.n_layers;
  run["prompt_tokens"] = recording.prompt;
  Json tokens = Json::array();
  for (const RecordedChoice& choice : recording.choices) tokens.push_back(choice.id);
  run["tokens"] = std::move(tokens);
  run["files"] = files;
  std::string text = to_text(run, 2);
  text.resize(text.size() - std::string_view("\n}").size());
  const std::string hash = xxh3_128(text.data(), text.size()).hex();
  return text.append(kHashMark).append(hash).append(kEnd);
}

// ---- reading -----------------------------------------------------------------------------------

Error invalid(const std::string& path, const std::string& what) {
  return {ErrorCode::kInvalidFile, path + ": " + what, "recording"};
}

Error not_a_file(const std::string& path) {
  return {ErrorCode::kInvalidFile, path + " is not a regular file", "recording"};
}

Result<std::string> read_file(const std::string& path) {
  std::error_code code;
  const uintmax_t size = fs::file_size(path, code);
  if (code == std::errc::no_such_file_or_directory) {
    return Error{ErrorCode::kNotFound, path + " is not there: a recording has this file",
                 "recording"};
  }
  std::error_code ignored;
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored)) return not_a_file(path);
  if (code) return Error{ErrorCode::kIo, path + ": " + code.message(), "recording"};
  if (size > kMostBytes) return invalid(path, "larger than 4 GiB, which no recording's is");
  std::ifstream file(path, std::ios::binary);
  std::string text(size, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) {
    return Error{ErrorCode::kIo, path + " cannot be read", "recording"};
  }
  return text;
}

Result<Hash128> hash_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{ErrorCode::kNotFound, path + " is not there", "recording"};
  StreamHash hash;
  std::vector<char> buffer(size_t{1} << 20);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) ||
         file.gcount() > 0) {
    hash.update(buffer.data(), static_cast<size_t>(file.gcount()));
  }
  return hash.digest();
}

Result<Json> read_run(const std::string& path) {
  CUTAWAY_ASSIGN(const std::string text, read_file(path));
  constexpr size_t kDigits = 32;
  const size_t tail = kHashMark.size() + kDigits + kEnd.size();
  if (text.size() < tail || !std::string_view(text).ends_with(kEnd) ||
      text.compare(text.size() - tail, kHashMark.size(), kHashMark) != 0) {
    return invalid(path, "it does not end with its hash: it was cut, or is no recording's");
  }
  const size_t size = text.size() - tail;
  if (text.substr(size + kHashMark.size(), kDigits) != xxh3_128(text.data(), size).hex()) {
    return invalid(path, "its bytes do not give the hash that it ends with: it was changed");
  }
  auto json = parse_json(text);
  if (!json.ok()) return invalid(path, json.error().message);
  if (!json->is_object() || (*json)["format"] != kFormat) {
    return invalid(path, "it is no recording's");
  }
  if (const Json& version = (*json)["version"]; version != kVersion) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("{}: version {} of the format; this program reads {}", path,
                             version.dump(), kVersion),
                 "recording"};
  }
  return std::move(*json);
}

// The typed members of a JSON object that a file should have: the first that is missing or of
// another kind is the error.
class Members {
 public:
  Members(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  Result<int64_t> integer(const char* key, int64_t min, int64_t max) const {
    const auto it = json_.find(key);
    if (it == json_.end() || !it->is_number_integer() || it->get<int64_t>() < min ||
        it->get<int64_t>() > max) {
      return invalid(path_, fmt::format("\"{}\" is {}, expected an integer, {} to {}", key,
                                        it == json_.end() ? "missing" : it->dump(), min, max));
    }
    return it->get<int64_t>();
  }
  Result<std::string> text(const char* key) const {
    const auto it = json_.find(key);
    if (it == json_.end() || !it->is_string()) {
      return invalid(path_, fmt::format("\"{}\" is {}, expected text", key,
                                        it == json_.end() ? "missing" : it->dump()));
    }
    return it->get<std::string>();
  }
  Result<std::vector<int32_t>> ids(const char* key) const {
    std::vector<int32_t> out;
    const auto it = json_.find(key);
    const auto good = [](const Json& id) {
      return id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() <= INT32_MAX;
    };
    if (it == json_.end() || !it->is_array() || !std::all_of(it->begin(), it->end(), good)) {
      return invalid(path_, fmt::format("\"{}\" is not a list of token ids", key));
    }
    for (const Json& id : *it) out.push_back(id.get<int32_t>());
    return out;
  }

 private:
  const Json& json_;
  std::string path_;
};

bool parse_hex(std::string_view text, uint64_t& out) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), out, 16);
  return text.size() == 16 && end.ec == std::errc() && end.ptr == text.data() + text.size();
}

Status read_hashes(const Json& event, const std::string& where, Recording& out) {
  const Members members(event, where);
  const auto next = out.first_hashed + static_cast<int64_t>(out.layer_hashes.size());
  const bool first = out.layer_hashes.empty();
  CUTAWAY_ASSIGN(const int64_t position,
                 members.integer("position", first ? 0 : next, first ? INT32_MAX : next));
  if (first) out.first_hashed = position;
  const auto it = event.find("resid_post");
  std::vector<uint64_t> row;
  if (it != event.end() && it->is_array()) {
    for (const Json& text : *it) {
      uint64_t hash = 0;
      if (!text.is_string() || !parse_hex(text.get_ref<const std::string&>(), hash)) break;
      row.push_back(hash);
    }
  }
  if (static_cast<int64_t>(row.size()) != out.n_layers || it->size() != row.size()) {
    return invalid(where, fmt::format("\"resid_post\" is not a list of {} hashes of 16 hex digits",
                                      out.n_layers));
  }
  out.layer_hashes.push_back(std::move(row));
  return {};
}

Status read_sample(const Json& event, const std::string& where, size_t index, Recording& out) {
  const Members members(event, where);
  const auto step = static_cast<int64_t>(index);
  if (index >= out.choices.size()) {
    return invalid(where, fmt::format("a choice more than the {} of run.json", out.choices.size()));
  }
  CUTAWAY_TRY(members.integer("step", step, step));
  RecordedChoice& choice = out.choices[index];
  CUTAWAY_TRY(members.integer("id", choice.id, choice.id));
  CUTAWAY_ASSIGN(choice.piece, members.text("piece"));
  CUTAWAY_ASSIGN(const std::string hash, members.text("logits_xxh3"));
  if (hash.size() != 32 || !parse_hex(std::string_view(hash).substr(0, 16), choice.logits.high) ||
      !parse_hex(std::string_view(hash).substr(16), choice.logits.low)) {
    return invalid(where, "\"logits_xxh3\" is not 32 hex digits");
  }
  const auto ledger = event.find("ledger");
  if (ledger == event.end() || !ledger->is_object()) {
    return invalid(where, "\"ledger\" is not an object");
  }
  choice.ledger = *ledger;
  const auto ms = event.find("ms");
  if (ms != event.end() && !ms->is_number()) return invalid(where, "\"ms\" is not a number");
  choice.ms = ms != event.end() ? ms->get<double>() : 0;
  return {};
}

Status read_events(const std::string& path, std::string_view text, Recording& out) {
  size_t samples = 0, line = 0;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string where = fmt::format("{}, line {}", path, line + 1);
    auto event = parse_json(text.substr(begin, end - begin));
    if (!event.ok()) return invalid(where, event.error().message);
    CUTAWAY_ASSIGN(const std::string kind, Members(*event, where).text("kind"));
    if (kind == "hashes") {
      CUTAWAY_TRY(read_hashes(*event, where, out));
    } else if (kind == "sample") {
      CUTAWAY_TRY(read_sample(*event, where, samples++, out));
    } else {
      return invalid(where, "\"kind\" is \"" + kind + "\", expected hashes or sample");
    }
    begin = end + 1;
  }
  if (samples != out.choices.size()) {
    return invalid(path, fmt::format("it has {} choices, run.json has {} tokens", samples,
                                     out.choices.size()));
  }
  const auto computed = static_cast<int64_t>(out.computed_tokens().size());
  const int64_t hashed = out.first_hashed + static_cast<int64_t>(out.layer_hashes.size());
  if (!out.choices.empty() && hashed != computed) {
    return invalid(
        path, fmt::format("its hashes end at position {}, the run computed {}", hashed, computed));
  }
  return {};
}

// What the doors show of every recording.
Status check_described(const Json& run, const std::string& path) {
  const Members members(run, path);
  for (const char* key : {"run", "created", "text", "finish_reason"}) {
    CUTAWAY_TRY(members.text(key));
  }
  const std::pair<const char*, std::vector<const char*>> objects[] = {
      {"model", {"name", "path", "packed_xxh3"}},
      {"session", {"kernels", "cache_type"}},
      {"sampling", {}}};
  for (const auto& [object, keys] : objects) {
    const auto it = run.find(object);
    if (it == run.end() || !it->is_object()) {
      return invalid(path, fmt::format("\"{}\" is not an object", object));
    }
    const Members inner(*it, fmt::format("{}: \"{}\"", path, object));
    for (const char* key : keys) CUTAWAY_TRY(inner.text(key));
  }
  return {};
}

Status check_file(const Json& files, const char* name, const std::string& directory) {
  const std::string path = directory + "/" + name;
  const Members entry(files.at(name), directory + "/" + kRunFile + ": \"files\": " + name);
  CUTAWAY_ASSIGN(const int64_t bytes, entry.integer("bytes", 0, INT64_MAX));
  CUTAWAY_ASSIGN(const std::string hash, entry.text("xxh3"));
  std::error_code code;
  const uintmax_t size = fs::file_size(path, code);
  std::error_code ignored;
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored)) return not_a_file(path);
  if (code) {
    return Error{ErrorCode::kNotFound, path + " is not there: run.json names it", "recording"};
  }
  if (size != static_cast<uintmax_t>(bytes)) {
    return invalid(path, fmt::format("it has {} bytes, the recording was made with {}: it was cut "
                                     "or changed",
                                     size, bytes));
  }
  CUTAWAY_ASSIGN(const Hash128 found, hash_file(path));
  if (found.hex() != hash) {
    return invalid(path, "its bytes do not give the hash in run.json: it was changed");
  }
  return {};
}

Result<Json> describe_file(const std::string& path) {
  std::error_code code;
  const uintmax_t size = fs::file_size(path, code);
  if (code) return Error{ErrorCode::kIo, path + ": " + code.message(), "record"};
  CUTAWAY_ASSIGN(const Hash128 hash, hash_file(path));
  return Json{{"bytes", size}, {"xxh3", hash.hex()}};
}

}  // namespace

std::vector<int32_t> Recording::computed_tokens() const {
  std::vector<int32_t> out = prompt;
  for (size_t i = 0; i + 1 < choices.size(); ++i) out.push_back(choices[i].id);
  return out;
}

Result<RecordingWriter> RecordingWriter::create(const std::string& directory) {
  CUTAWAY_SPAN(span, "inspect::RecordingWriter::create", "directory", directory);
  std::error_code code;
  const fs::path target = fs::path(directory).lexically_normal();
  if (directory.empty() || !target.has_filename()) {
    // "runs/" names the folder "runs".
    if (directory.empty() || !target.has_parent_path()) {
      return Error{ErrorCode::kInvalidArgument, "the recording's folder has no name", "record"};
    }
  }
  const fs::path named = target.has_filename() ? target : target.parent_path();
  if (fs::exists(named, code) && !(fs::is_directory(named, code) && fs::is_empty(named, code))) {
    return Error{ErrorCode::kInvalidArgument,
                 named.string() + " is there already; a recording takes a new folder", "record"};
  }
  RecordingWriter out;
  out.directory_ = named.string();
  out.temporary_ = named.string() + "." + new_ulid() + ".part";
  if (named.has_parent_path()) fs::create_directories(named.parent_path(), code);
  if (!fs::create_directory(out.temporary_, code)) {
    const std::string why = code ? code.message() : "it is there already";
    out.temporary_.clear();
    return Error{ErrorCode::kIo, out.directory_ + " cannot be made: " + why, "record"};
  }
  return out;
}

RecordingWriter::RecordingWriter(RecordingWriter&& other) noexcept
    : directory_(std::move(other.directory_)), temporary_(std::move(other.temporary_)) {
  other.temporary_.clear();
}

RecordingWriter::~RecordingWriter() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

std::string RecordingWriter::tensors_path() const { return temporary_ + "/" + kTensorsFile; }

std::string RecordingWriter::trace_path() const { return temporary_ + "/" + kTraceFile; }

std::string RecordingWriter::patches_path() const { return temporary_ + "/" + kPatchesFile; }

Status RecordingWriter::commit(const Recording& recording) {
  CUTAWAY_SPAN(span, "inspect::RecordingWriter::commit", "directory", directory_, "positions",
               recording.layer_hashes.size(), "choices", recording.choices.size());
  const std::string events = temporary_ + "/" + kEventsFile;
  CUTAWAY_TRY(write_file(events, events_text(recording)));
  Json files = Json::object();
  CUTAWAY_ASSIGN(files[kEventsFile], describe_file(events));
  if (recording.interventions) {
    CUTAWAY_TRY(write_file(temporary_ + "/" + kInterventionsFile,
                           to_text(*recording.interventions, 2) + "\n"));
  }
  std::error_code code;
  for (const char* name : {kTraceFile, kTensorsFile, kInterventionsFile, kPatchesFile}) {
    const std::string path = temporary_ + "/" + name;
    if (!fs::exists(path, code)) continue;
    CUTAWAY_ASSIGN(files[name], describe_file(path));
  }
  CUTAWAY_TRY(write_file(temporary_ + "/" + kRunFile, run_text(recording, files)));
  // An empty folder is replaced; anything that came there meanwhile is not.
  if (::rename(temporary_.c_str(), directory_.c_str()) != 0) {
    const Error error{ErrorCode::kIo,
                      fmt::format("{} cannot be made: {}; the recording is whole in {}", directory_,
                                  std::strerror(errno), temporary_),
                      "record"};
    temporary_.clear();  // it stays
    return error;
  }
  temporary_.clear();
  CUTAWAY_OUT(span, "files", files.size() + 1);
  return {};
}

Result<RecordedTrace> read_trace(const std::string& directory, int64_t most) {
  CUTAWAY_SPAN(span, "inspect::read_trace", "directory", directory, "most", most);
  const std::string path = directory + "/" + kTraceFile;
  CUTAWAY_ASSIGN(const std::string text, read_file(path));
  RecordedTrace out;
  for (size_t begin = 0; begin < text.size(); ++out.count) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (out.count >= most) continue;
    const std::string where = fmt::format("{}, line {}", path, out.count + 1);
    auto record = parse_json(line);
    if (!record.ok()) return invalid(where, record.error().message);
    const Members members(*record, where);
    for (const char* key : {"kind", "phase", "name"}) CUTAWAY_TRY(members.text(key));
    for (const char* key : {"thread", "depth"}) {
      CUTAWAY_TRY(members.integer(key, 0, INT32_MAX));
    }
    for (const char* key : {"t_us", "duration_us"}) {
      const auto it = record->find(key);
      const bool needed = key[0] == 't' || (*record)["kind"] == "exit";
      if (it == record->end() ? needed : !it->is_number() || it->get<double>() < 0) {
        return invalid(where, fmt::format("\"{}\" is no time in microseconds", key));
      }
    }
    out.lines.push_back(std::move(*record));
  }
  CUTAWAY_OUT(span, "lines", out.count);
  return out;
}

Result<Recording> read_recording(const std::string& directory) {
  CUTAWAY_SPAN(span, "inspect::read_recording", "directory", directory);
  const std::string run_path = directory + "/" + kRunFile;
  CUTAWAY_ASSIGN(Json run, read_run(run_path));
  CUTAWAY_TRY(check_described(run, run_path));
  const Members members(run, run_path);
  Recording out;
  CUTAWAY_ASSIGN(out.n_layers, members.integer("layers", 1, 1 << 16));
  CUTAWAY_ASSIGN(out.prompt, members.ids("prompt_tokens"));
  CUTAWAY_ASSIGN(const std::vector<int32_t> ids, members.ids("tokens"));
  for (const int32_t id : ids) out.choices.push_back({id, "", {}, {}});
  const auto files = run.find("files");
  if (files == run.end() || !files->is_object() || !files->contains(kEventsFile)) {
    return invalid(run_path, "\"files\" does not name events.jsonl");
  }
  for (const auto& [name, entry] : files->items()) {
    const auto* const known =
        std::find(std::begin(kListedFiles), std::end(kListedFiles), std::string_view(name));
    if (known == std::end(kListedFiles)) {
      return invalid(run_path, "\"files\" names \"" + name + "\", which no recording has");
    }
    CUTAWAY_TRY(check_file(*files, *known, directory));
  }
  out.has_tensors = files->contains(kTensorsFile);
  out.has_trace = files->contains(kTraceFile);
  if (files->contains(kInterventionsFile)) {
    const std::string path = directory + "/" + kInterventionsFile;
    CUTAWAY_ASSIGN(const std::string text, read_file(path));
    auto json = parse_json(text);
    if (!json.ok()) return invalid(path, json.error().message);
    out.interventions = std::move(*json);
  }
  const std::string events_path = directory + "/" + kEventsFile;
  CUTAWAY_ASSIGN(const std::string events, read_file(events_path));
  CUTAWAY_TRY(read_events(events_path, events, out));
  for (const char* key :
       {"format", "version", "layers", "prompt_tokens", "tokens", "files", "xxh3"}) {
    run.erase(key);
  }
  out.run = std::move(run);
  CUTAWAY_OUT(span, "prompt", out.prompt.size(), "choices", out.choices.size());
  return out;
}

}  // namespace cutaway::inspect
