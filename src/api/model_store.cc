#include "cutaway/model_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "api/built_in.h"
#include "api/package.h"
#include "api/pull_plan.h"
#include "api/store_layout.h"
#include "base/guard.h"
#include "base/suggest.h"
#include "trace/trace.h"

namespace cutaway {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExtension = ".gguf";
constexpr int kLongestAliasChain = 16;

std::string default_home() {
  if (const char* home = std::getenv("CUTAWAY_HOME"); home != nullptr && *home != '\0') return home;
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    return std::string(home) + "/.cache/cutaway";
  }
  const passwd* user = ::getpwuid(::getuid());
  return std::string(user != nullptr ? user->pw_dir : "/tmp") + "/.cache/cutaway";
}

Error invalid_alias(const std::string& entry) {
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("CUTAWAY_ALIASES: '{}' is not NAME=MODEL", entry), "CUTAWAY_ALIASES"};
}

// CUTAWAY_ALIASES=NAME=MODEL,NAME=MODEL; the first entry of a name counts.
Result<std::map<std::string, std::string>> aliases() {
  std::map<std::string, std::string> out;
  const char* text = std::getenv("CUTAWAY_ALIASES");
  const std::string all = text != nullptr ? text : "";
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find(',', begin), all.size());
    const std::string entry = all.substr(begin, end - begin);
    begin = end + 1;
    if (entry.empty()) continue;
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == entry.size()) {
      return invalid_alias(entry);
    }
    out.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return out;
}

// What a name stands for once every alias is followed.
Result<std::string> follow_aliases(const std::string& model) {
  CUTAWAY_ASSIGN(const auto known, aliases());
  std::string name = model;
  for (int i = 0; i < kLongestAliasChain; ++i) {
    const auto found = known.find(name);
    if (found == known.end() || found->second == name) return name;
    name = found->second;
  }
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("the alias '{}' leads back to itself", model), "CUTAWAY_ALIASES"};
}

bool looks_like_path(const std::string& model) {
  return model.find('/') != std::string::npos || model.ends_with(kExtension);
}

Error not_found(const std::string& model, const std::vector<InstalledModel>& installed) {
  const api::BuiltInSource* source = api::find_built_in(model);
  if (source != nullptr) {
    return Error{
        ErrorCode::kNotFound,
        fmt::format("the model '{0}' is not installed; `cutaway pull {0}` gets it ({1} MB)", model,
                    source->bytes / 1'000'000),
        "model"};
  }
  if (api::is_remote_source(model)) {
    return Error{
        ErrorCode::kNotFound,
        fmt::format("'{0}' is not installed under that name; `cutaway pull {0}` gets it and "
                    "says what it is called here",
                    model),
        "model"};
  }
  if (looks_like_path(model)) {
    return Error{ErrorCode::kNotFound, fmt::format("there is no file '{}'", model), "model"};
  }
  std::vector<std::string> names, known;
  for (const InstalledModel& m : installed) names.push_back(m.name);
  known = names;
  for (const api::BuiltInSource& s : api::built_in_sources()) known.push_back(s.name);
  std::string text = fmt::format("there is no file, alias or installed model '{}'", model);
  const std::string near = nearest_word(model, known);
  if (!near.empty()) text += fmt::format("; did you mean '{}'?", near);
  text += names.empty() ? " (no model is installed; `cutaway pull smollm2-135m` gets the default)"
                        : fmt::format(" (installed: {})", fmt::join(names, ", "));
  return Error{ErrorCode::kNotFound, text, "model"};
}

}  // namespace

ModelStore::ModelStore(std::string home) : home_(home.empty() ? default_home() : std::move(home)) {}

Result<std::string> ModelStore::resolve(const std::string& model) const {
  return guarded("finding the model", [&]() -> Result<std::string> {
    CUTAWAY_SPAN(span, "api::ModelStore::resolve", "model", model);
    if (model.empty()) {
      return Error{ErrorCode::kInvalidArgument, "model is empty; a path or a name is needed",
                   "model"};
    }
    CUTAWAY_ASSIGN(const std::string name, follow_aliases(model));
    std::error_code error;
    if (fs::exists(name, error)) {
      CUTAWAY_OUT(span, "path", name);
      return name;
    }
    // Permission denied, a name too long, …: the system's own words.
    if (error) {
      return Error{ErrorCode::kIo, fmt::format("cannot open '{}': {}", name, error.message()),
                   "model"};
    }
    const std::vector<InstalledModel> installed = list();
    for (const InstalledModel& m : installed) {
      if (m.name == name || (!m.source.empty() && m.source == name)) {
        CUTAWAY_OUT(span, "path", m.path);
        return m.path;
      }
    }
    // A file with a built-in model's bytes answers to that name, whatever it is called.
    if (const api::BuiltInSource* source = api::find_built_in(name); source != nullptr) {
      for (const InstalledModel& m : installed) {
        if (m.bytes != source->bytes) continue;
        CUTAWAY_ASSIGN(const std::string sha256, api::sha256_of_file(m.path));
        if (sha256 != source->sha256) continue;
        CUTAWAY_OUT(span, "path", m.path);
        return m.path;
      }
    }
    return not_found(name, installed);
  });
}

std::vector<InstalledModel> ModelStore::list() const {
  CUTAWAY_SPAN(span, "api::ModelStore::list", "home", home_);
  std::vector<InstalledModel> out = api::installed_models(home_ + "/models");
  CUTAWAY_OUT(span, "n", out.size());
  return out;
}

std::vector<UnfinishedPull> ModelStore::unfinished() const {
  CUTAWAY_SPAN(span, "api::ModelStore::unfinished", "home", home_);
  std::vector<UnfinishedPull> out = api::unfinished_pulls(home_ + "/models");
  CUTAWAY_OUT(span, "n", out.size());
  return out;
}

std::vector<BuiltInModel> ModelStore::built_in() const {
  std::vector<BuiltInModel> out;
  for (const api::BuiltInSource& s : api::built_in_sources()) {
    std::string source = s.requirement.empty() ? s.hub : "pypi:" + s.requirement;
    if (!s.requirement.empty() && !s.hub.empty()) source += " or " + s.hub;
    out.push_back({s.name, s.description, s.licence, std::move(source), s.bytes});
  }
  return out;
}

Status ModelStore::remove(const std::string& name) {
  return guarded("removing the model", [&]() -> Status {
    CUTAWAY_SPAN(span, "api::ModelStore::remove", "name", name);
    CUTAWAY_TRY(api::check_model_name(name));
    const std::vector<InstalledModel> installed = list();
    for (const InstalledModel& m : installed) {
      if (m.name != name) continue;
      CUTAWAY_TRY(api::remove_model(m, home_ + "/models"));
      CUTAWAY_OUT(span, "path", m.path);
      return {};
    }
    for (const UnfinishedPull& pull : unfinished()) {
      if (pull.name != name) continue;
      api::PullLock lock;
      CUTAWAY_TRY(lock.take(home_ + "/models", {}, false));
      std::error_code error;
      fs::remove_all(pull.path, error);
      if (error) {
        return Error{ErrorCode::kIo,
                     fmt::format("cannot remove '{}': {}", pull.path, error.message())};
      }
      CUTAWAY_OUT(span, "path", pull.path);
      return {};
    }
    // An alias is not followed: removing through another name would surprise.
    CUTAWAY_ASSIGN(const std::string target, follow_aliases(name));
    if (target != name) {
      return Error{ErrorCode::kNotFound,
                   fmt::format("'{}' is an alias of '{}', not an installed model", name, target),
                   "name"};
    }
    std::vector<std::string> names;
    names.reserve(installed.size());
    for (const InstalledModel& m : installed) names.push_back(m.name);
    return Error{ErrorCode::kNotFound,
                 names.empty() ? fmt::format("the model '{}' is not installed (none is)", name)
                               : fmt::format("the model '{}' is not installed (installed: {})",
                                             name, fmt::join(names, ", ")),
                 "name"};
  });
}

}  // namespace cutaway
