// cutaway info: the machine and the kernels chosen; a model's metadata; third-party notices.
#include <fmt/format.h>
#include <unistd.h>

#include <sstream>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/licences.h"
#include "cli/model_info.h"
#include "cli/output.h"
#include "cli/terminal.h"

namespace cutaway::cli {
namespace {

// Everything but the nested parts, which have a form of their own.
Json without(const Json& object, std::initializer_list<const char*> keys) {
  Json out = object;
  for (const char* key : keys) out.erase(key);
  return out;
}

// Columns of the terminal that stdout is; 0 when it is none: scripts get whole lines.
size_t output_width() {
  return is_terminal(STDOUT_FILENO) ? static_cast<size_t>(terminal_width(STDOUT_FILENO)) : 0;
}

std::string machine_text(const Json& machine) {
  const size_t width = output_width();
  std::string out = key_values(without(machine, {"cpu", "kernels"}), 0, width);
  if (machine.contains("cpu")) out += "cpu\n" + key_values(machine.at("cpu"), 2, width);
  if (!machine.contains("kernels")) return out;
  const Json& kernels = machine.at("kernels");
  out += fmt::format("kernels: {}\n", printable(kernels.value("chosen", "")));
  for (const Json& choice : kernels.value("choices", Json::array())) {
    out += fmt::format("  {:<8}  {}\n", printable(choice.value("name", "")),
                       printable(choice.value("reason", "")));
  }
  return out;
}

// {"name","version"?,"licence","copyright"} of everything that the program is made of.
Result<Json> notices() {
  CUTAWAY_ASSIGN(const Json listed, parse_json(licence_components()));
  Json out = Json::array();
  for (const Json& part : listed.at("components")) {
    out.push_back({{"name", part.at("name")},
                   {"licence", part.at("licence")},
                   {"copyright", part.at("copyright")}});
  }
  std::istringstream crates{std::string(licence_crates())};
  for (std::string name, version, licence, authors;
       std::getline(std::getline(std::getline(std::getline(crates, name, '\t'), version, '\t'),
                                 licence, '\t'),
                    authors);) {
    out.push_back({{"name", name + " (crate)"},
                   {"version", version},
                   {"licence", licence},
                   {"copyright", authors.empty() ? "its authors" : authors}});
  }
  return out;
}

std::string licence_text(const Json& all) {
  std::string out = "cutaway is licensed under Apache-2.0. It is made with:\n\n";
  for (const Json& notice : all) {
    const std::string version = notice.value("version", "");
    out += fmt::format("{}{}{}: {}\n  Copyright {}\n", notice.at("name").get<std::string>(),
                       version.empty() ? "" : " ", version, notice.at("licence").get<std::string>(),
                       notice.at("copyright").get<std::string>());
  }
  return out;
}

}  // namespace

int info_command(int argc, char** argv) {
  Args args("cutaway info",
            "Shows the machine and the kernels chosen; with -m a model's metadata.");
  ModelArgs model_args;
  EngineArgs engine_args;
  bool tensors = false, licences = false, json = false;
  model_args.add_to(args);
  engine_args.add_to(args);
  args.flag("--tensors", tensors, "With -m: every tensor's type, shape, size, place and name");
  args.flag("--licenses", licences, "The third-party notices");
  args.flag("--json", json, "One JSON document on stdout");
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  if (licences && (model_args.model || tensors)) {
    return args.wrong_usage("--licenses stands alone (with --json at most)");
  }
  if (tensors && !model_args.model) {
    return args.wrong_usage("--tensors has no effect without --model; add it");
  }
  if (licences) {
    const auto all = notices();
    if (!all.ok()) return report(all.error());
    if (json) {
      write_json({{"licenses", *all}});
    } else {
      write_out(licence_text(*all));
    }
    return end_output(kDone);
  }
  if (const Status status = model_args.aliases.apply(); !status.ok()) {
    return args.wrong_usage(status.error().message);
  }
  auto engine = engine_args.create();
  if (!engine.ok()) return report(engine.error());
  Json result = {{"machine", (*engine)->machine_info()}};
  if (model_args.model) {
    auto model = load_model(**engine, *model_args.model);
    if (!model.ok()) return finish(**engine, report(model.error()));
    result["model"] = (*model)->info(tensors);
  }
  if (json) {
    write_json(result);
  } else if (result.contains("model")) {
    write_out(model_text(result.at("model"), output_width()));
  } else {
    write_out(machine_text(result.at("machine")));
  }
  return finish(**engine, kDone);
}

}  // namespace cutaway::cli
