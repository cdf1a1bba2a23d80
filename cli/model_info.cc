#include "cli/model_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "cli/terminal.h"

namespace cutaway::cli {
namespace {

constexpr size_t kShownItems = 6;  // of a list in the metadata
constexpr size_t kShownItemColumns = 24;
constexpr size_t kShownColumns = 100;  // of a text in the metadata
constexpr size_t kFewestColumns = 16, kFewestItemColumns = 6;
constexpr size_t kWideTable = 80;  // columns that a table with every column needs

// A value on one line: long lists and texts are cut, with what is left out.
std::string short_value(const Json& value, size_t columns) {
  if (value.is_string()) {
    const std::string text = in_quotes(value.get<std::string>());
    if (display_width(text) <= columns) return text;
    const std::string size = fmt::format(" ({} bytes)", value.get_ref<const std::string&>().size());
    return fit(text, std::max(columns, size.size() + kFewestColumns) - size.size()) + size;
  }
  // The library clips long lists of the metadata: {"count":49152,"first":[…]}.
  const bool clipped = value.is_object() && value.size() == 2 && value.contains("count") &&
                       value.contains("first") && value.at("first").is_array();
  const Json& list = clipped ? value.at("first") : value;
  if (!list.is_array() || (!clipped && list.size() <= kShownItems)) {
    return printable(to_text(value));
  }
  const std::string end =
      fmt::format("…] ({} items)", clipped ? value.at("count").get<size_t>() : list.size());
  const size_t around = display_width(end) + 2;
  const size_t item_room =
      std::min(kShownItemColumns, std::max(columns, around + kFewestItemColumns) - around);
  std::string out = "[";
  for (size_t i = 0; i < std::min(kShownItems, list.size()); ++i) {
    const std::string item = short_value(list[i], kShownItemColumns);
    const std::string shown = fit(item, std::min(display_width(item), item_room));
    const size_t all = display_width(out) + display_width(shown) + 1 + display_width(end);
    if (i > 0 && all > columns) break;
    out += shown + ",";
  }
  return out + end;
}

std::string number_text(double count) {
  const char* units[] = {"", " k", " M", " G", " T"};
  size_t unit = 0;
  for (; count >= 1000 && unit + 1 < std::size(units); ++unit) count /= 1000;
  return unit == 0 ? fmt::format("{:.0f}", count) : fmt::format("{:.1f}{}", count, units[unit]);
}

std::string bytes_text(const Json& object, const std::string& key) {
  return human_bytes(object.value(key, 0.0));
}

std::string line(const std::string& label, const std::string& value) {
  return fmt::format("{:<14} {}\n", label, value);
}

std::string tokenizer_text(const Json& tokenizer) {
  const std::string pre = tokenizer.value("pre", "");
  std::string out =
      fmt::format("{}{}, {} tokens", printable(tokenizer.value("model", "")),
                  pre.empty() ? "" : " (" + printable(pre) + ")", tokenizer.value("tokens", 0));
  const Json special = tokenizer.value("special", Json::object());
  for (const auto& [name, token] : special.items()) {
    out +=
        fmt::format(", {} {} {}", name, token.value("id", -1), in_quotes(token.value("piece", "")));
  }
  return out;
}

std::string memory_text(const Json& model) {
  const Json token = model.value("kv_bytes_per_token", Json::object());
  const Json context = model.value("kv_bytes_of_context", Json::object());
  std::vector<std::string> types;
  for (const auto& [type, bytes] : token.items()) {
    types.push_back(fmt::format("{} {}", type, human_bytes(bytes.get<double>())));
  }
  return line("memory", "weights " + bytes_text(model, "packed_bytes")) +
         line("", fmt::format("keys and values of a token: {}", fmt::join(types, ", "))) +
         line("", fmt::format("of the whole context, f16: {}", bytes_text(context, "f16")));
}

std::string object_text(const Json& object) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : object.items()) {
    parts.push_back(name + " " +
                    (value.is_string() ? printable(value.get<std::string>()) : to_text(value)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string type_table(const Json& types) {
  std::string out = "weights\n";
  out += fmt::format("  {:<8}{:>8}  {:>10}  {:>9}  {:>15}\n", "type", "tensors", "parameters",
                     "size", "bits per weight");
  for (const Json& type : types) {
    out += fmt::format("  {:<8}{:>8}  {:>10}  {:>9}  {:>15.2f}\n", type.value("dtype", ""),
                       type.value("tensors", 0), number_text(type.value("parameters", 0.0)),
                       bytes_text(type, "bytes"), type.value("bits_per_weight", 0.0));
  }
  return out;
}

// The name comes last: it may be of any length. A narrow terminal gets no offsets.
std::string tensor_table(const Json& tensors, size_t width, bool shards) {
  const bool wide = width == 0 || width >= kWideTable;
  std::string out = "tensors\n";
  const auto row = [&](const std::string& type, const std::string& shape, const std::string& bytes,
                       const std::string& offset, const std::string& shard,
                       const std::string& name) {
    out += fmt::format("  {:<7} {:<14} {:>10}", type, shape, bytes);
    if (wide) out += fmt::format(" {:>13}", offset);
    if (shards) out += fmt::format(" {:>5}", shard);
    out += "  " + name + "\n";
  };
  row("type", "shape", "bytes", "offset", "shard", "name");
  for (const Json& tensor : tensors) {
    std::string shape;
    for (const Json& size : tensor.value("shape", Json::array())) {
      shape += (shape.empty() ? "" : ",") + to_text(size);
    }
    row(tensor.value("dtype", ""), shape, to_text(tensor.at("bytes")), to_text(tensor.at("offset")),
        shards ? to_text(tensor.at("shard")) : "", printable(tensor.value("name", "")));
  }
  return out;
}

std::string shape_text(const Json& m) {
  return fmt::format("{} layers, d_model {}, {} heads ({} for keys and values) of {}, MLP {}",
                     m.value("layers", 0), m.value("d_model", 0), m.value("heads", 0),
                     m.value("kv_heads", 0), m.value("d_head", 0), m.value("d_mlp", 0));
}

}  // namespace

std::string key_values(const Json& object, size_t indent, size_t width) {
  size_t key_columns = 0;
  for (const auto& [key, value] : object.items()) {
    key_columns = std::max(key_columns, display_width(printable(key)));
  }
  const size_t before = indent + key_columns + 2;
  // A terminal without room beside the keys gets each value on a line of its own.
  const bool narrow = width > 0 && width < before + kFewestColumns;
  const size_t taken = narrow ? indent + 4 : before;
  const size_t room = width == 0 ? kShownColumns : std::max(width, taken + kFewestColumns) - taken;
  std::string out;
  for (const auto& [key, value] : object.items()) {
    out += std::string(indent, ' ') + (narrow ? printable(key) : fit(printable(key), key_columns));
    out += narrow ? "\n" + std::string(taken, ' ') : "  ";
    out += short_value(value, std::min(room, kShownColumns)) + "\n";
  }
  return out;
}

std::string model_text(const Json& model, size_t width) {
  const bool shards = model.contains("files");
  std::string out = fmt::format(
      "{}: {}, {} parameters in {} ({:.2f} bits per weight)\n", printable(model.value("name", "")),
      printable(model.value("architecture", "")), number_text(model.value("parameters", 0.0)),
      bytes_text(model, "bytes"), model.value("bits_per_weight", 0.0));
  out += line("path", printable(model.value("path", "")));
  if (shards) {
    for (const Json& file : model.at("files")) {
      out += line(
          "", fmt::format("{}  {}", bytes_text(file, "bytes"), printable(file.value("path", ""))));
    }
  }
  out += line("shape", shape_text(model));
  if (model.contains("experts")) {
    out += line("experts", fmt::format("{}, {} for each token", model.value("experts", 0),
                                       model.value("experts_used", 0)));
  }
  out += line("context", fmt::format("{} tokens", model.value("context_length", 0)));
  out += line("tokenizer", tokenizer_text(model.value("tokenizer", Json::object())));
  out += line("chat template", model.value("chat_template", false) ? "yes" : "none");
  const std::string sampling = object_text(model.value("sampling_defaults", Json::object()));
  out += line("sampling", sampling.empty() ? "nothing recommended" : sampling);
  const std::string licence = object_text(model.value("licence", Json::object()));
  out += line("licence", licence.empty() ? "the file does not say" : licence);
  out += memory_text(model);
  out += type_table(model.value("types", Json::array()));
  if (model.contains("metadata")) out += "metadata\n" + key_values(model.at("metadata"), 2, width);
  if (model.contains("tensors")) out += tensor_table(model.at("tensors"), width, shards);
  return out;
}

}  // namespace cutaway::cli
