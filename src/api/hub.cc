#include "api/hub.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>

#include "api/download.h"
#include "base/http_client.h"
#include "base/json.h"
#include "formats/shard_name.h"
#include "formats/sniff.h"
#include "trace/trace.h"

namespace cutaway::api {
namespace {

constexpr const char* kPublicHub = "https://huggingface.co";
constexpr const char* kForm =
    "the form is hf:OWNER/REPO, hf:OWNER/REPO:FILE or "
    "hf:OWNER/REPO@REVISION:FILE";
constexpr const char* kPreferredType = "q4_k_m";
constexpr size_t kMaxPages = 100;
constexpr size_t kShownChoices = 40;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool is_set(const char* name) {
  const std::string value = environment(name);
  return !value.empty() && value != "0" && value != "false" && value != "FALSE";
}

// What the hub allows in names: letters, digits, '-', '_', '.', none of them "." or "..".
bool is_hub_name(const std::string& text) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  return !text.empty() && text.size() <= 96 && text.front() != '.' &&
         std::all_of(text.begin(), text.end(), plain);
}

// A branch, tag or commit: "refs/pr/1" has slashes.
bool is_revision(const std::string& text) {
  return !text.empty() && text.size() <= 255 && text.find("..") == text.npos &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c > 0x20 && c < 0x7f; });
}

std::string trimmed(std::string text) {
  const char* spaces = " \t\r\n";
  text.erase(text.find_last_not_of(spaces) + 1);
  text.erase(0, text.find_first_not_of(spaces));
  return text;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return trimmed(line);
}

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string megabytes(uint64_t bytes) {
  if (bytes >= 1'000'000'000) return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
  return fmt::format("{} MB", (bytes + 999'999) / 1'000'000);
}

Error unexpected(const HubSource& source, const std::string& what) {
  return Error{ErrorCode::kNetwork,
               fmt::format("{}: {} is not what a Hugging Face hub answers (HF_ENDPOINT?)",
                           source.text(""), what)};
}

// One entry of …/tree; nothing for folders.
std::optional<HubFile> file_of(const Json& entry) {
  const auto text = [](const Json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto bytes = [](const Json& object) -> uint64_t {
    const auto found = object.find("size");
    return found != object.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
  };
  if (!entry.is_object() || text(entry, "type") != "file") return {};
  HubFile out{text(entry, "path"), bytes(entry), ""};
  const auto lfs = entry.find("lfs");
  if (lfs != entry.end() && lfs->is_object()) {
    if (bytes(*lfs) > 0) out.bytes = bytes(*lfs);
    const std::string oid = lower(text(*lfs, "oid"));
    const bool valid = oid.size() == 64 && oid.find_first_not_of("0123456789abcdef") == oid.npos;
    if (valid) out.sha256 = oid;
  }
  if (out.path.empty()) return {};
  return out;
}

// Projectors and calibration data beside the models are no models of their own.
bool is_model(const std::string& path) {
  const std::string name = lower(base_name(path));
  return name.ends_with(".gguf") && !name.starts_with("mmproj") && !name.starts_with("imatrix") &&
         name.find("imatrix.gguf") == name.npos;
}

// The listing's models, by path without shard number and extension.
std::map<std::string, HubModel> models_of(const std::vector<HubFile>& files) {
  std::map<std::string, HubModel> out;
  for (const HubFile& file : files) {
    if (!is_model(file.path)) continue;
    const auto shard = formats::parse_shard_name(file.path);
    const std::string stem =
        shard ? shard->prefix : file.path.substr(0, file.path.size() - std::string(".gguf").size());
    // Sets of another count are another model.
    HubModel& model = out[shard ? fmt::format("{}-of-{}", stem, shard->count) : stem];
    model.name = base_name(stem);
    model.files.push_back(file);
  }
  for (auto& [key, model] : out) {
    std::sort(model.files.begin(), model.files.end(),
              [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  }
  return out;
}

// "model-Q4_K_M" and "Q4_K_M/model" are of the type "q4_k_m".
bool is_of_type(const HubModel& model, const std::string& type) {
  const std::string name = lower(model.name), path = lower(model.files.front().path);
  const bool at_end =
      name.size() > type.size() && name.ends_with(type) &&
      std::string("-._").find(name[name.size() - type.size() - 1]) != std::string::npos;
  return name == type || at_end || path.starts_with(type + "/") ||
         path.find("/" + type + "/") != path.npos;
}

bool is_named(const HubModel& model, const std::string& file) {
  const std::string wanted = lower(file);
  return lower(model.name) == wanted ||
         std::any_of(model.files.begin(), model.files.end(), [&](const HubFile& f) {
           return f.path == file || lower(base_name(f.path)) == wanted;
         });
}

std::string choices(const std::map<std::string, HubModel>& models) {
  std::vector<std::string> lines;
  for (const auto& [key, model] : models) {
    if (lines.size() == kShownChoices) {
      lines.push_back("…");
      break;
    }
    const std::string path = model.files.front().path;
    const std::string shards =
        model.files.size() > 1 ? fmt::format(" in {} shards", model.files.size()) : "";
    lines.push_back(fmt::format("{} ({}{})", path, megabytes(model.bytes()), shards));
  }
  return fmt::format("{}", fmt::join(lines, ", "));
}

Error no_gguf(const HubSource& source, const std::vector<HubFile>& files) {
  uint64_t bytes = 0;
  size_t weights = 0;
  bool config = false;
  for (const HubFile& file : files) {
    if (file.path == "config.json") config = true;
    if (!file.path.ends_with(".safetensors")) continue;
    ++weights;
    bytes += file.bytes;
  }
  if (weights == 0) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("{} has no GGUF file ({} other files)", source.text(""), files.size()),
                 "name"};
  }
  return Error{
      ErrorCode::kUnsupported,
      fmt::format("{} holds a Hugging Face folder ({}{} safetensors files, {}), which this version "
                  "does not read; nothing was fetched. A repository with GGUF files of it (often "
                  "called {}-GGUF) can be pulled",
                  source.text(""), config ? "config.json, " : "", weights, megabytes(bytes),
                  source.repo),
      "name"};
}

// All shards 1 … count must be in the listing.
Result<HubModel> complete(const HubSource& source, HubModel model) {
  const auto first = formats::parse_shard_name(model.files.front().path);
  if (!first) return model;
  for (int64_t no = 1; no <= first->count; ++no) {
    const std::string path = formats::shard_path(first->prefix, no, first->count);
    const auto i = static_cast<size_t>(no - 1);
    if (i >= model.files.size() || model.files[i].path != path) {
      return Error{ErrorCode::kNotFound,
                   fmt::format("{} has no shard {} of {} ({})", source.text(""), no, first->count,
                               formats::in_quotes(path)),
                   "name"};
    }
  }
  return model;
}

}  // namespace

uint64_t HubModel::bytes() const {
  CUTAWAY_SPAN(span, "api::HubModel::bytes", "model", name, "files", files.size());
  uint64_t total = 0;
  for (const HubFile& file : files) total += file.bytes;
  CUTAWAY_OUT(span, "bytes", total);
  return total;
}

std::string HubSource::text(const std::string& of_file) const {
  CUTAWAY_SPAN(span, "api::HubSource::text", "repository", repository(), "file", of_file);
  std::string out = "hf:" + repository() + (revision == "main" ? "" : "@" + revision) +
                    (of_file.empty() ? "" : ":" + of_file);
  CUTAWAY_OUT(span, "text", out);
  return out;
}

Result<HubSource> parse_hub_source(const std::string& text) {
  CUTAWAY_SPAN(span, "api::parse_hub_source", "text", text);
  const auto bad = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidArgument, fmt::format("'{}': {}; {}", text, why, kForm),
                 "name"};
  };
  HubSource out;
  std::string rest = text.substr(std::min<size_t>(text.size(), 3));
  const size_t slash = rest.find('/');
  if (slash == rest.npos) return bad("it names no repository");
  out.owner = rest.substr(0, slash);
  rest.erase(0, slash + 1);
  const size_t end = rest.find_first_of("@:/");
  out.repo = rest.substr(0, end);
  rest.erase(0, std::min(end, rest.size()));
  if (rest.starts_with('@')) {
    const size_t colon = std::min(rest.find(':'), rest.size());
    out.revision = rest.substr(1, colon - 1);
    rest.erase(0, colon);
  }
  if (rest.starts_with('/')) return bad("a file of the repository stands after ':', not after '/'");
  if (rest.starts_with(':')) {
    out.file = rest.substr(1);
    if (out.file.empty()) return bad("the file after ':' is empty");
  }
  if (!is_hub_name(out.owner) || !is_hub_name(out.repo)) {
    return bad("owner and repository are letters, digits, '-', '_' and '.'");
  }
  if (!is_revision(out.revision)) return bad("the revision is a branch, a tag or a commit");
  CUTAWAY_OUT(span, "repository", out.repository(), "revision", out.revision, "file", out.file);
  return out;
}

std::optional<HubSource> hub_source_of_url(const std::string& url) {
  CUTAWAY_SPAN(span, "api::hub_source_of_url", "url", url_without_secrets(url));
  const auto endpoint = hub_endpoint();
  const auto base = endpoint.ok() ? parse_url(*endpoint) : endpoint.error();
  const auto parsed = parse_url(url);
  if (!base.ok() || !parsed.ok() || parsed->host != base->host || parsed->port != base->port) {
    return {};
  }
  std::vector<std::string> parts;
  for (size_t begin = 1; begin < parsed->path.size();) {
    const size_t end = std::min(parsed->path.find('/', begin), parsed->path.size());
    parts.push_back(url_decode(parsed->path.substr(begin, end - begin)));
    begin = end + 1;
  }
  // OWNER/REPO, OWNER/REPO/tree/REVISION, OWNER/REPO/{resolve,blob,raw}/REVISION/PATH…
  HubSource out;
  if (parts.size() < 2 || !is_hub_name(parts[0]) || !is_hub_name(parts[1])) return {};
  out.owner = parts[0];
  out.repo = parts[1];
  if (parts.size() == 2 && parts[1].ends_with(".gguf")) return {};  // a file beside the hub
  const bool file =
      parts.size() >= 5 && (parts[2] == "resolve" || parts[2] == "blob" || parts[2] == "raw");
  if (!file && parts.size() != 2 && !(parts.size() == 4 && parts[2] == "tree")) return {};
  if (parts.size() >= 4) out.revision = parts[3];
  if (!is_revision(out.revision)) return {};
  if (file) {
    out.file = fmt::format("{}", fmt::join(parts.begin() + 4, parts.end(), "/"));
  }
  CUTAWAY_OUT(span, "source", out.text(out.file));
  return out;
}

Result<std::string> hub_endpoint() {
  CUTAWAY_SPAN(span, "api::hub_endpoint");
  std::string endpoint = environment("HF_ENDPOINT");
  if (endpoint.empty()) endpoint = kPublicHub;
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const auto parsed = parse_url(endpoint);
  if (!parsed.ok()) {
    Error error = parsed.error().within("HF_ENDPOINT");
    error.field = "HF_ENDPOINT";
    return error;
  }
  CUTAWAY_OUT(span, "endpoint", url_without_secrets(endpoint));
  return endpoint;
}

Status check_online() {
  CUTAWAY_SPAN(span, "api::check_online");
  const bool offline = is_set("HF_HUB_OFFLINE");
  CUTAWAY_OUT(span, "offline", offline);
  if (!offline) return {};
  return Error{ErrorCode::kNetwork, "HF_HUB_OFFLINE is set: the hub is not asked",
               "HF_HUB_OFFLINE"};
}

std::string hub_token() {
  // The token itself never goes into a trace.
  CUTAWAY_SPAN(span, "api::hub_token");
  std::string token = trimmed(environment("HF_TOKEN"));
  if (token.empty() && !is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
    std::string path = environment("HF_TOKEN_PATH"), home = environment("HF_HOME");
    if (home.empty() && !environment("XDG_CACHE_HOME").empty()) {
      home = environment("XDG_CACHE_HOME") + "/huggingface";
    }
    if (home.empty() && !environment("HOME").empty()) {
      home = environment("HOME") + "/.cache/huggingface";
    }
    if (path.empty() && !home.empty()) path = home + "/token";
    if (!path.empty()) token = first_line(path);
  }
  CUTAWAY_OUT(span, "there", !token.empty());
  return token;
}

std::string hub_file_url(const std::string& endpoint, const HubSource& source,
                         const std::string& path) {
  CUTAWAY_SPAN(span, "api::hub_file_url", "path", path);
  std::string url = fmt::format("{}/{}/resolve/{}/{}", endpoint, source.repository(),
                                url_encode(source.revision, false), url_encode(path, true));
  CUTAWAY_OUT(span, "url", url_without_secrets(url));
  return url;
}

Result<std::vector<HubFile>> list_hub_files(const HubSource& source, const ProgressFn& progress) {
  CUTAWAY_SPAN(span, "api::list_hub_files", "repository", source.repository());
  CUTAWAY_ASSIGN(const std::string endpoint, hub_endpoint());
  DownloadSource page;
  page.url = fmt::format("{}/api/models/{}/tree/{}?recursive=true", endpoint, source.repository(),
                         url_encode(source.revision, false));
  page.shown = source.text("");
  page.bearer_token = hub_token();
  page.hub = true;
  std::vector<HubFile> out;
  for (size_t pages = 0; !page.url.empty(); ++pages) {
    if (pages == kMaxPages) return unexpected(source, "a listing without an end");
    CUTAWAY_ASSIGN(const FetchedText fetched, fetch_text(page, progress));
    const auto json = parse_json(fetched.text);
    if (!json.ok() || !json->is_array()) return unexpected(source, "the listing of files");
    for (const Json& entry : *json) {
      if (auto file = file_of(entry); file) out.push_back(std::move(*file));
    }
    page.url = fetched.next;
    // The next page is the hub's own, or it is not asked for with the token.
    if (!page.url.starts_with(endpoint + "/")) page.bearer_token.clear();
  }
  CUTAWAY_OUT(span, "files", out.size());
  return out;
}

Result<HubModel> choose_hub_model(const HubSource& source, const std::vector<HubFile>& files) {
  CUTAWAY_SPAN(span, "api::choose_hub_model", "file", source.file, "files", files.size());
  const std::map<std::string, HubModel> models = models_of(files);
  if (models.empty()) return no_gguf(source, files);
  std::vector<const HubModel*> found;
  const auto find = [&](const auto& matches) {
    for (const auto& [key, model] : models) {
      if (matches(model)) found.push_back(&model);
    }
  };
  if (source.file.empty()) {
    if (models.size() == 1) {
      found.push_back(&models.begin()->second);
    } else {
      find([](const HubModel& m) { return is_of_type(m, kPreferredType); });
    }
  } else {
    find([&](const HubModel& m) { return is_named(m, source.file); });
    if (found.empty()) find([&](const HubModel& m) { return is_of_type(m, lower(source.file)); });
  }
  if (found.size() == 1) {
    CUTAWAY_OUT(span, "model", found[0]->name, "files", found[0]->files.size());
    return complete(source, *found[0]);
  }
  const std::string wanted =
      source.file.empty() ? fmt::format("{} has {} models", source.text(""), models.size())
      : found.empty()
          ? fmt::format("{} has no model {}", source.text(""), formats::in_quotes(source.file))
          : fmt::format("{} has {} models {}", source.text(""), found.size(),
                        formats::in_quotes(source.file));
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("{}; choose one as {}:FILE, by its name or by its type alone: {}",
                           wanted, source.text(""), choices(models)),
               "name"};
}

}  // namespace cutaway::api
