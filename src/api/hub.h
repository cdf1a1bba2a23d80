// A Hugging Face hub: which files a repository has, and which of them is meant.
// Source: the hub's HTTP API (api/models/…/tree, resolve) and the variables of huggingface_hub.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cutaway/options.h"

namespace cutaway::api {

// hf:OWNER/REPO[@REVISION][:FILE]
struct HubSource {
  std::string owner, repo;
  std::string revision = "main";
  std::string file;  // as written: a path, a file's name or a type such as Q4_K_M; may be empty

  std::string repository() const { return owner + "/" + repo; }
  // "hf:OWNER/REPO", with "@REVISION" unless it is main, and with ":FILE" when `file` is not empty.
  std::string text(const std::string& file) const;
};

// Error kInvalidArgument says what the form is.
Result<HubSource> parse_hub_source(const std::string& text);
// The same for a page or file of the hub ($HF_ENDPOINT) that was given as a URL; nothing for
// others.
std::optional<HubSource> hub_source_of_url(const std::string& url);

// $HF_ENDPOINT, else the public hub; without a slash at the end. Error kInvalidArgument.
Result<std::string> hub_endpoint();
// Error kNetwork when HF_HUB_OFFLINE is set.
Status check_online();
// $HF_TOKEN, else the token file of huggingface_hub ($HF_TOKEN_PATH, $HF_HOME/token,
// ~/.cache/huggingface/token) unless HF_HUB_DISABLE_IMPLICIT_TOKEN is set; else empty.
std::string hub_token();

struct HubFile {
  std::string path;  // in the repository: never a path on this machine
  uint64_t bytes = 0;
  std::string sha256;  // empty when the hub does not say (small files outside LFS)
};

// Errors: those of fetch_text; kNetwork when the answer is not the hub's.
Result<std::vector<HubFile>> list_hub_files(const HubSource& source, const ProgressFn& progress);

// The files of one model: one, or all shards in their order.
struct HubModel {
  std::string name;  // of the file, without its extension and shard number: not checked
  std::vector<HubFile> files;
  uint64_t bytes() const;
};

// Which model of the listing `source` means. With a file: that path, name or type. Without: the
// only one there is, else the one of type Q4_K_M. Errors: kInvalidArgument names the choices;
// kUnsupported for a repository without GGUF files (says what it holds); kNotFound when shards are
// missing there.
Result<HubModel> choose_hub_model(const HubSource& source, const std::vector<HubFile>& files);

// Where a file's bytes are.
std::string hub_file_url(const std::string& endpoint, const HubSource& source,
                         const std::string& path);

}  // namespace cutaway::api
