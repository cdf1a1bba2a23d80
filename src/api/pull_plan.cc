#include "api/pull_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/hub.h"
#include "api/store_layout.h"
#include "base/http_client.h"
#include "formats/shard_name.h"
#include "trace/trace.h"

namespace cutaway::api {
namespace {

// The name of file `i` of `n` of the model `name`.
std::string local_name(const std::string& name, size_t i, size_t n) {
  return n == 1 ? name + kModelExtension
                : formats::shard_path(name, static_cast<int64_t>(i + 1), static_cast<int64_t>(n));
}

Result<std::string> checked_sha256(const std::string& text) {
  std::string hex = text;
  for (char& c : hex) c = c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  if (hex.empty() || (hex.size() == 64 && hex.find_first_not_of("0123456789abcdef") == hex.npos)) {
    return hex;
  }
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("sha256: '{}' is not a SHA-256; it has 64 hex digits", text), "sha256"};
}

Error one_hash_many_shards() {
  return Error{ErrorCode::kInvalidArgument,
               "sha256: the model has several shards, each with a SHA-256 of its own; leave it out",
               "sha256"};
}

Result<PullPlan> plan_hub(const HubSource& source, const PullOptions& options,
                          const ProgressFn& progress) {
  const auto endpoint = hub_endpoint();
  if (!endpoint.ok()) return endpoint.error().within(source.text(source.file));
  if (const Status s = check_online(); !s.ok()) return s.error().within(source.text(source.file));
  CUTAWAY_ASSIGN(const std::vector<HubFile> files, list_hub_files(source, progress));
  CUTAWAY_ASSIGN(const HubModel model, choose_hub_model(source, files));
  PullPlan plan;
  plan.name = options.name.empty() ? model.name : options.name;
  CUTAWAY_TRY(check_model_name(plan.name));
  plan.source = source.text(model.files.front().path);
  plan.bytes = model.bytes();
  if (!options.sha256.empty() && model.files.size() > 1) return one_hash_many_shards();
  CUTAWAY_ASSIGN(const std::string wanted, checked_sha256(options.sha256));
  for (size_t i = 0; i < model.files.size(); ++i) {
    const HubFile& file = model.files[i];
    if (!wanted.empty() && !file.sha256.empty() && wanted != file.sha256) {
      return Error{ErrorCode::kInvalidFile, fmt::format("{} has the SHA-256 {}, expected {}",
                                                        plan.source, file.sha256, wanted)};
    }
    PullPart part;
    part.source.url = hub_file_url(*endpoint, source, file.path);
    part.source.shown = source.text(file.path);
    part.source.bearer_token = hub_token();
    part.source.hub = true;
    part.source.bytes = file.bytes;
    part.source.sha256 = file.sha256.empty() ? wanted : file.sha256;
    part.file_name = local_name(plan.name, i, model.files.size());
    plan.parts.push_back(std::move(part));
  }
  return plan;
}

Result<PullPlan> plan_url(const std::string& url, const PullOptions& options) {
  const auto parsed = parse_url(url);
  if (!parsed.ok()) {
    Error error = parsed.error();
    error.field = "name";
    return error;
  }
  std::string file = url_decode(parsed->path.substr(parsed->path.rfind('/') + 1));
  const auto shard = formats::parse_shard_name(file);
  if (file.ends_with(kModelExtension)) file.resize(file.size() - std::string(".gguf").size());
  PullPlan plan;
  plan.name = !options.name.empty() ? options.name : shard ? shard->prefix : file;
  if (const Status checked = check_model_name(plan.name); !checked.ok()) {
    if (!options.name.empty()) return checked.error();
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} does not end in a file's name that could be the model's; --name "
                             "gives it one",
                             url_without_secrets(url)),
                 "name"};
  }
  plan.source = url_without_secrets(url);
  CUTAWAY_ASSIGN(const std::string sha256, checked_sha256(options.sha256));
  const int64_t count = shard ? shard->count : 1;
  if (count > 1 && !sha256.empty()) return one_hash_many_shards();
  // Where the shard's number stands in the URL: in its last segment, before a query.
  const size_t end = std::min(url.find_first_of("?#"), url.size());
  const auto in_url = formats::parse_shard_name(std::string_view(url).substr(0, end));
  if (count > 1 && !in_url) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} is one of {} shards, but its name is percent-encoded; write it "
                             "plainly",
                             plan.source, count),
                 "name"};
  }
  for (int64_t no = 1; no <= count; ++no) {
    PullPart part;
    part.source.url =
        count == 1 ? url : formats::shard_path(in_url->prefix, no, count) + url.substr(end);
    part.source.shown = url_without_secrets(part.source.url);
    part.source.sha256 = sha256;
    part.file_name = local_name(plan.name, static_cast<size_t>(no - 1), static_cast<size_t>(count));
    plan.parts.push_back(std::move(part));
  }
  return plan;
}

}  // namespace

bool is_remote_source(const std::string& text) {
  CUTAWAY_SPAN(span, "api::is_remote_source", "text", url_without_secrets(text));
  const bool remote =
      text.starts_with("hf:") || text.starts_with("http://") || text.starts_with("https://");
  CUTAWAY_OUT(span, "is", remote);
  return remote;
}

Result<PullPlan> plan_pull(const std::string& source, const PullOptions& options,
                           const ProgressFn& progress) {
  CUTAWAY_SPAN(span, "api::plan_pull", "source", url_without_secrets(source));
  std::optional<HubSource> hub;
  if (source.starts_with("hf:")) {
    CUTAWAY_ASSIGN(hub, parse_hub_source(source));
  } else {
    hub = hub_source_of_url(source);
  }
  CUTAWAY_ASSIGN(PullPlan plan,
                 hub ? plan_hub(*hub, options, progress) : plan_url(source, options));
  CUTAWAY_OUT(span, "name", plan.name, "parts", plan.parts.size(), "bytes", plan.bytes);
  return plan;
}

Result<PullPlan> plan_built_in(const BuiltInSource& source) {
  CUTAWAY_SPAN(span, "api::plan_built_in", "name", source.name);
  CUTAWAY_ASSIGN(const HubSource hub, parse_hub_source(source.hub));
  const auto endpoint = hub_endpoint();
  if (!endpoint.ok()) return endpoint.error().within(source.hub);
  if (const Status s = check_online(); !s.ok()) return s.error().within(source.hub);
  PullPart part;
  part.source.url = hub_file_url(*endpoint, hub, hub.file);
  part.source.shown = source.hub;
  part.source.bearer_token = hub_token();
  part.source.hub = true;
  part.source.bytes = source.bytes;
  part.source.sha256 = source.sha256;
  part.file_name = source.name + kModelExtension;
  CUTAWAY_OUT(span, "url", url_without_secrets(part.source.url));
  return PullPlan{source.name, source.hub, {std::move(part)}, source.bytes};
}

}  // namespace cutaway::api
