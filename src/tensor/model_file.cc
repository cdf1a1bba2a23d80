#include "tensor/model_file.h"

#include <cmath>
#include <limits>

namespace cutaway {
namespace {

const char* kind_name(const MetaValue& value) {
  static constexpr const char* kNames[] = {"a boolean",
                                           "an integer",
                                           "an integer",
                                           "a number",
                                           "a string",
                                           "an array of integers",
                                           "an array of numbers",
                                           "an array of strings",
                                           "an array of booleans"};
  return kNames[value.index()];
}

Error absent(std::string_view key) {
  return {ErrorCode::kNotFound, "the model file has no metadata key " + std::string(key),
          std::string(key)};
}

Error wrong_kind(std::string_view key, const MetaValue& value, const char* wanted) {
  return {ErrorCode::kInvalidFile,
          "metadata " + std::string(key) + " is " + kind_name(value) + ", expected " + wanted,
          std::string(key)};
}

// value_or: absent gives the fallback, everything else is as it was.
template <typename T>
Result<T> or_fallback(Result<T> result, T fallback) {
  if (!result.ok() && result.error().code == ErrorCode::kNotFound) return fallback;
  return result;
}

}  // namespace

bool Metadata::insert(std::string key, MetaValue value) {
  if (!index_.emplace(key, entries_.size()).second) return false;
  entries_.emplace_back(std::move(key), std::move(value));
  return true;
}

const MetaValue* Metadata::find(std::string_view key) const {
  const auto it = index_.find(std::string(key));
  return it == index_.end() ? nullptr : &entries_[it->second].second;
}

Result<int64_t> Metadata::integer(std::string_view key, int64_t min, int64_t max) const {
  const MetaValue* value = find(key);
  if (value == nullptr) return absent(key);
  const auto out_of_range = [&](const std::string& text) {
    return Error{ErrorCode::kInvalidFile,
                 "metadata " + std::string(key) + " is " + text + ", expected " +
                     std::to_string(min) + " to " + std::to_string(max),
                 std::string(key)};
  };
  if (const auto* u = std::get_if<uint64_t>(value)) {
    if (*u > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return out_of_range(std::to_string(*u));
    }
    const auto i = static_cast<int64_t>(*u);
    if (i < min || i > max) return out_of_range(std::to_string(i));
    return i;
  }
  if (const auto* i = std::get_if<int64_t>(value)) {
    if (*i < min || *i > max) return out_of_range(std::to_string(*i));
    return *i;
  }
  return wrong_kind(key, *value, "an integer");
}

Result<double> Metadata::number(std::string_view key) const {
  const MetaValue* value = find(key);
  if (value == nullptr) return absent(key);
  double number = 0;
  if (const auto* d = std::get_if<double>(value))
    number = *d;
  else if (const auto* i = std::get_if<int64_t>(value))
    number = static_cast<double>(*i);
  else if (const auto* u = std::get_if<uint64_t>(value))
    number = static_cast<double>(*u);
  else
    return wrong_kind(key, *value, "a number");
  if (!std::isfinite(number)) {
    return Error{ErrorCode::kInvalidFile, "metadata " + std::string(key) + " is not finite",
                 std::string(key)};
  }
  return number;
}

Result<std::string> Metadata::string(std::string_view key) const {
  const MetaValue* value = find(key);
  if (value == nullptr) return absent(key);
  if (const auto* s = std::get_if<std::string>(value)) return *s;
  return wrong_kind(key, *value, "a string");
}

Result<bool> Metadata::boolean(std::string_view key) const {
  const MetaValue* value = find(key);
  if (value == nullptr) return absent(key);
  if (const auto* b = std::get_if<bool>(value)) return *b;
  return wrong_kind(key, *value, "a boolean");
}

Result<const std::vector<std::string>*> Metadata::strings(std::string_view key) const {
  const MetaValue* value = find(key);
  if (value == nullptr) return absent(key);
  if (const auto* v = std::get_if<std::vector<std::string>>(value)) return v;
  return wrong_kind(key, *value, "an array of strings");
}

Result<std::vector<int64_t>> Metadata::integers(std::string_view key) const {
  const MetaValue* value = find(key);
  if (value == nullptr) return absent(key);
  if (const auto* v = std::get_if<std::vector<int64_t>>(value)) return *v;
  return wrong_kind(key, *value, "an array of integers");
}

Result<std::vector<double>> Metadata::numbers(std::string_view key) const {
  const MetaValue* value = find(key);
  if (value == nullptr) return absent(key);
  if (const auto* v = std::get_if<std::vector<double>>(value)) return *v;
  if (const auto* v = std::get_if<std::vector<int64_t>>(value)) {
    return std::vector<double>(v->begin(), v->end());
  }
  return wrong_kind(key, *value, "an array of numbers");
}

Result<int64_t> Metadata::integer_or(std::string_view key, int64_t fallback, int64_t min,
                                     int64_t max) const {
  return or_fallback(integer(key, min, max), fallback);
}
Result<double> Metadata::number_or(std::string_view key, double fallback) const {
  return or_fallback(number(key), fallback);
}
Result<std::string> Metadata::string_or(std::string_view key, std::string fallback) const {
  return or_fallback(string(key), std::move(fallback));
}
Result<bool> Metadata::boolean_or(std::string_view key, bool fallback) const {
  return or_fallback(boolean(key), fallback);
}

const StoredTensor* ModelFile::find_tensor(std::string_view name) const {
  const auto it = tensor_index.find(std::string(name));
  return it == tensor_index.end() ? nullptr : &tensors[it->second];
}

uint64_t ModelFile::total_bytes() const {
  uint64_t total = 0;
  for (const InputFile& file : files) total += file.size();
  return total;
}

Status ModelFile::read(const StoredTensor& tensor, uint64_t begin, std::span<uint8_t> out) const {
  CUTAWAY_CHECK(begin <= tensor.size && out.size() <= tensor.size - begin);
  return files[tensor.file].read(tensor.offset + begin, out);
}

Result<std::vector<uint8_t>> ModelFile::bytes_of(const StoredTensor& tensor) const {
  std::vector<uint8_t> out(tensor.size);
  CUTAWAY_TRY(read(tensor, 0, out));
  return out;
}

Status ModelFile::check_unchanged() const {
  for (const InputFile& file : files) CUTAWAY_TRY(file.check_unchanged());
  return {};
}

}  // namespace cutaway
