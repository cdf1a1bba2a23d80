#include "formats/safetensors_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "base/json.h"
#include "base/suggest.h"
#include "base/utf8.h"
#include "tensor/dtype.h"
#include "trace/trace.h"

namespace cutaway::formats {
namespace {

constexpr uint64_t kMostHeader = 100'000'000;          // as the format's own reader has it
constexpr uint64_t kMostElements = uint64_t{1} << 30;  // that one read() gives

Error invalid(const InputFile& file, const std::string& what) {
  return {ErrorCode::kInvalidFile, file.path() + ": " + what, "safetensors"};
}

// Bytes of one element; none: a dtype that the format does not have.
std::optional<uint64_t> element_bytes(const std::string& dtype) {
  constexpr std::pair<const char*, uint64_t> kSizes[] = {
      {"F64", 8}, {"I64", 8}, {"U64", 8},  {"F32", 4},     {"I32", 4},
      {"U32", 4}, {"F16", 2}, {"BF16", 2}, {"I16", 2},     {"U16", 2},
      {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const auto& [name, bytes] : kSizes) {
    if (dtype == name) return bytes;
  }
  return std::nullopt;
}

bool is_size(const Json& json) {
  return json.is_number_integer() && (json.is_number_unsigned() || json.get<int64_t>() >= 0);
}

Result<SafetensorsFile::Tensor> read_entry(const InputFile& file, const std::string& name,
                                           const Json& entry, uint64_t data_begin) {
  const std::string shown = "tensor \"" + utf8_replace_invalid(name.substr(0, 128)) + "\"";
  SafetensorsFile::Tensor out;
  out.name = name;
  const auto get = [&](const char* key) {
    return entry.is_object() ? entry.value(key, Json()) : Json();
  };
  const Json dtype = get("dtype"), shape = get("shape"), offsets = get("data_offsets");
  if (!dtype.is_string() || !element_bytes(dtype.get<std::string>())) {
    return invalid(file,
                   shown + ": \"dtype\" is " + to_text(dtype) + ", which the format does not have");
  }
  out.dtype = dtype.get<std::string>();
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_size)) {
    return invalid(file, shown + ": \"shape\" is no list of sizes");
  }
  uint64_t bytes = *element_bytes(out.dtype);
  for (const Json& size : shape) {
    const auto n = size.get<uint64_t>();
    if (n > INT64_MAX || (n != 0 && bytes > file.size() / n)) {
      return invalid(file, shown + ": its shape is larger than the file");
    }
    bytes *= n;
    out.shape.push_back(static_cast<int64_t>(n));
  }
  if (!offsets.is_array() || offsets.size() != 2 ||
      !std::all_of(offsets.begin(), offsets.end(), is_size)) {
    return invalid(file, shown + ": \"data_offsets\" is no pair of offsets");
  }
  const auto begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
  if (begin > end || end > file.size() - data_begin || end - begin != bytes) {
    return invalid(file, fmt::format("{}: data_offsets {} to {} do not hold its {} bytes in a file "
                                     "with {} bytes of data",
                                     shown, begin, end, bytes, file.size() - data_begin));
  }
  out.begin = data_begin + begin;
  out.bytes = bytes;
  return out;
}

}  // namespace

int64_t SafetensorsFile::Tensor::elements() const {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  CUTAWAY_SPAN(span, "formats::SafetensorsFile::open", "path", path);
  SafetensorsFile out;
  CUTAWAY_ASSIGN(out.file_, InputFile::open(path));
  const InputFile& file = out.file_;
  uint64_t length = 0;
  if (file.size() < sizeof length) return invalid(file, "too short for a safetensors header");
  CUTAWAY_TRY(file.read(0, {reinterpret_cast<uint8_t*>(&length), sizeof length}));
  if (length > kMostHeader || length > file.size() - sizeof length) {
    return invalid(file,
                   fmt::format("its header would have {} bytes: it is no safetensors file, or "
                               "was cut",
                               length));
  }
  std::string text(length, '\0');
  CUTAWAY_TRY(file.read(sizeof length, {reinterpret_cast<uint8_t*>(text.data()), text.size()}));
  auto header = parse_json(text);
  if (!header.ok()) return invalid(file, "its header is no JSON: " + header.error().message);
  if (!header->is_object()) return invalid(file, "its header is no JSON object");
  for (const auto& [name, entry] : header->items()) {
    if (name == "__metadata__") continue;
    CUTAWAY_ASSIGN(Tensor tensor, read_entry(file, name, entry, sizeof length + length));
    out.tensors_.push_back(std::move(tensor));
  }
  CUTAWAY_OUT(span, "tensors", out.tensors_.size());
  return out;
}

Result<SafetensorsFile::Tensor> SafetensorsFile::find(const std::string& name) const {
  CUTAWAY_SPAN(span, "formats::SafetensorsFile::find", "name", name);
  std::vector<std::string> known;
  for (const Tensor& tensor : tensors_) {
    if (tensor.name == name) return tensor;
    known.push_back(tensor.name);
  }
  std::string message = path() + " has no tensor \"" + name + "\"";
  const std::string nearest = nearest_word(name, known);
  if (!nearest.empty()) {
    message += "; did you mean \"" + nearest + "\"?";
  } else if (!known.empty()) {
    message += fmt::format("; it has {} others, \"{}\" among them", known.size(), known.front());
  }
  return Error{ErrorCode::kNotFound, message, "tensor"};
}

Result<std::vector<float>> SafetensorsFile::read(const Tensor& tensor) const {
  CUTAWAY_SPAN(span, "formats::SafetensorsFile::read", "name", tensor.name, "dtype", tensor.dtype);
  const auto n = static_cast<size_t>(tensor.elements());
  if (n > kMostElements) {
    return Error{ErrorCode::kTooLarge,
                 fmt::format("{}: tensor \"{}\" has {} values, at most {} are read", path(),
                             tensor.name, n, kMostElements),
                 "tensor"};
  }
  const bool wide = tensor.dtype == "F64", half = tensor.dtype == "F16";
  if (!wide && !half && tensor.dtype != "F32" && tensor.dtype != "BF16") {
    return Error{ErrorCode::kUnsupported,
                 path() + ": tensor \"" + tensor.name + "\" is " + tensor.dtype +
                     "; F32, F16, BF16 or F64 are read",
                 "tensor"};
  }
  std::vector<float> out(n);
  if (tensor.dtype == "F32") {
    CUTAWAY_TRY(file_.read(tensor.begin, {reinterpret_cast<uint8_t*>(out.data()), n * 4}));
    return out;
  }
  std::vector<uint8_t> bytes(tensor.bytes);
  CUTAWAY_TRY(file_.read(tensor.begin, bytes));
  for (size_t i = 0; i < n; ++i) {
    if (wide) {
      double value = 0;
      std::memcpy(&value, bytes.data() + 8 * i, sizeof value);
      out[i] = static_cast<float>(value);
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + 2 * i, sizeof bits);
      out[i] = half ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
  }
  CUTAWAY_OUT(span, "values", n);
  return out;
}

}  // namespace cutaway::formats
