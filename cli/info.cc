// cutaway info: the machine and the kernels chosen; a model's metadata; third-party notices.
#include <fmt/format.h>

#include <sstream>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/licences.h"
#include "cli/output.h"
#include "cli/terminal.h"

namespace cutaway::cli {
namespace {

constexpr size_t kShownItems = 6;  // of a list in the metadata
constexpr size_t kShownItemColumns = 24;
constexpr size_t kShownColumns = 100;  // of a text in the metadata

// A value on one line: long lists and texts are cut, with what is left out.
std::string short_value(const Json& value) {
  if (value.is_string()) {
    const std::string text = in_quotes(value.get<std::string>());
    if (display_width(text) <= kShownColumns) return text;
    return fmt::format("{} ({} bytes)", fit(text, kShownColumns),
                       value.get_ref<const std::string&>().size());
  }
  // The library clips long lists of the metadata: {"count":49152,"first":[…]}.
  const bool clipped = value.is_object() && value.size() == 2 && value.contains("count") &&
                       value.contains("first") && value.at("first").is_array();
  const Json& list = clipped ? value.at("first") : value;
  if (!list.is_array() || (!clipped && list.size() <= kShownItems)) {
    return printable(to_text(value));
  }
  std::string out = "[";
  for (size_t i = 0; i < std::min(kShownItems, list.size()); ++i) {
    const std::string item = short_value(list[i]);
    out += (i > 0 ? "," : "") + fit(item, std::min(display_width(item), kShownItemColumns));
  }
  return out +
         fmt::format(",…] ({} items)", clipped ? value.at("count").get<size_t>() : list.size());
}

std::string key_values(const Json& object, size_t indent) {
  size_t width = 0;
  for (const auto& [key, value] : object.items()) width = std::max(width, display_width(key));
  std::string out;
  for (const auto& [key, value] : object.items()) {
    out += std::string(indent, ' ') + fit(printable(key), width) + "  " + short_value(value) + "\n";
  }
  return out;
}

// Everything but the nested parts, which have a form of their own.
Json without(const Json& object, std::initializer_list<const char*> keys) {
  Json out = object;
  for (const char* key : keys) out.erase(key);
  return out;
}

std::string machine_text(const Json& machine) {
  std::string out = key_values(without(machine, {"cpu", "kernels"}), 0);
  if (machine.contains("cpu")) out += "cpu\n" + key_values(machine.at("cpu"), 2);
  if (!machine.contains("kernels")) return out;
  const Json& kernels = machine.at("kernels");
  out += fmt::format("kernels: {}\n", printable(kernels.value("chosen", "")));
  for (const Json& choice : kernels.value("choices", Json::array())) {
    out += fmt::format("  {:<8}  {}\n", printable(choice.value("name", "")),
                       printable(choice.value("reason", "")));
  }
  return out;
}

std::string tensor_table(const Json& tensors) {
  std::string out;
  for (const Json& tensor : tensors) {
    std::string shape;
    for (const Json& size : tensor.value("shape", Json::array())) {
      shape += (shape.empty() ? "" : ",") + to_text(size);
    }
    out +=
        fmt::format("{:<6} {:<16} {}\n", printable(tensor.value("type", tensor.value("dtype", ""))),
                    shape, printable(tensor.value("name", "")));
  }
  return out;
}

std::string model_text(const Json& model) {
  std::string out = key_values(without(model, {"metadata", "tensors"}), 0);
  if (model.contains("metadata")) out += "metadata\n" + key_values(model.at("metadata"), 2);
  if (model.contains("tensors") && model.at("tensors").is_array()) {
    out += "tensors\n" + tensor_table(model.at("tensors"));
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
  args.flag("--tensors", tensors, "With -m: every tensor's type, shape and name");
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
    write_out(model_text(result.at("model")));
  } else {
    write_out(machine_text(result.at("machine")));
  }
  return finish(**engine, kDone);
}

}  // namespace cutaway::cli
