#include "formats/imatrix.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "base/input_file.h"
#include "formats/gguf.h"
#include "formats/sniff.h"
#include "trace/trace.h"

namespace cutaway::formats {
namespace {

// Of the older form, which is read whole: those of the largest models have some hundred megabytes.
constexpr uint64_t kMostLegacyBytes = uint64_t{1} << 30;
constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";

Error invalid(const std::string& path, const std::string& field, const std::string& what) {
  return {ErrorCode::kInvalidFile, fmt::format("{}: {}", path, what), field};
}

Status check(const std::string& path, const std::string& name, const Importance& importance) {
  for (size_t i = 0; i < importance.values.size(); ++i) {
    const float v = importance.values[i];
    if (std::isfinite(v) && v >= 0) continue;
    return invalid(path, name,
                   fmt::format("the importance of column {} of {} is {}, expected a finite number "
                               "of 0 or more",
                               i, in_quotes(name), v));
  }
  return {};
}

// ---- the GGUF form: sums of squares and counts as tensors ----

Result<std::vector<float>> floats_of(const ModelFile& file, const StoredTensor& tensor) {
  const std::string& path = file.path;
  if (tensor.dtype != DType::kF32) {
    return invalid(path, tensor.name,
                   fmt::format("tensor {} is {}, expected F32", in_quotes(tensor.name),
                               dtype_name(tensor.dtype)));
  }
  std::vector<float> out(tensor.size / sizeof(float));
  CUTAWAY_TRY(file.read(
      tensor, 0, std::span(reinterpret_cast<uint8_t*>(out.data()), out.size() * sizeof(float))));
  return out;
}

Result<Importance> from_sums(const ModelFile& file, const std::string& name,
                             const StoredTensor& sums, const StoredTensor& counts) {
  const std::string& path = file.path;
  Importance out;
  CUTAWAY_ASSIGN(out.values, floats_of(file, sums));
  CUTAWAY_ASSIGN(out.counts, floats_of(file, counts));
  if (out.counts.empty() || out.values.size() % out.counts.size() != 0) {
    return invalid(path, name,
                   fmt::format("{} has {} sums for {} counts, expected a multiple", in_quotes(name),
                               out.values.size(), out.counts.size()));
  }
  out.matrices = static_cast<int64_t>(out.counts.size());
  const size_t columns = out.values.size() / out.counts.size();
  for (size_t m = 0; m < out.counts.size(); ++m) {
    const float count = out.counts[m];
    if (!std::isfinite(count) || count < 0) {
      return invalid(path, name,
                     fmt::format("count {} of {} is {}, expected a finite number of 0 or more", m,
                                 in_quotes(name), count));
    }
    // An expert that no token met: every column alike.
    for (size_t i = 0; i < columns; ++i) {
      float& value = out.values[m * columns + i];
      value = count > 0 ? value / count : 1;
    }
  }
  return out;
}

Result<ImportanceMatrix> read_gguf(const std::string& path) {
  CUTAWAY_ASSIGN(const std::shared_ptr<const ModelFile> file, open_gguf(path));
  CUTAWAY_ASSIGN(const std::string type, file->metadata.string_or("general.type", ""));
  if (type != "imatrix") {
    return invalid(path, "general.type",
                   fmt::format("general.type is {}, expected \"imatrix\": a file of importance",
                               in_quotes(type)));
  }
  ImportanceMatrix out;
  for (const StoredTensor& tensor : file->tensors) {
    const std::string_view name = tensor.name;
    if (!name.ends_with(kSums)) continue;
    const std::string weight(name.substr(0, name.size() - kSums.size()));
    const StoredTensor* counts = file->find_tensor(weight + std::string(kCounts));
    if (counts == nullptr) {
      return invalid(path, weight, fmt::format("{} has sums but no counts", in_quotes(weight)));
    }
    CUTAWAY_ASSIGN(Importance importance, from_sums(*file, weight, tensor, *counts));
    CUTAWAY_TRY(check(path, weight, importance));
    out.tensors.emplace(weight, std::move(importance));
  }
  if (out.tensors.empty()) return invalid(path, "", "there is no importance in it (NAME.in_sum2)");
  CUTAWAY_ASSIGN(out.chunks, file->metadata.integer_or("imatrix.chunk_count", 0, 0, INT64_MAX));
  CUTAWAY_ASSIGN(out.chunk_size, file->metadata.integer_or("imatrix.chunk_size", 0, 0, INT64_MAX));
  if (file->metadata.has("imatrix.datasets")) {
    CUTAWAY_ASSIGN(const auto* datasets, file->metadata.strings("imatrix.datasets"));
    out.datasets = *datasets;
  }
  return out;
}

// ---- the older form: entries one after another ----

class Bytes {
 public:
  Bytes(const std::string& path, std::span<const uint8_t> bytes) : path_(path), bytes_(bytes) {}

  bool at_end() const { return pos_ == bytes_.size(); }

  Result<int32_t> number(const std::string& what, int32_t most) {
    int32_t value = 0;
    if (bytes_.size() - pos_ < sizeof value) return short_of(what);
    std::memcpy(&value, bytes_.data() + pos_, sizeof value);
    if (value < 0 || value > most) {
      return invalid(path_, what,
                     fmt::format("byte {}: {} is {}, expected 0 to {}", pos_, what, value, most));
    }
    pos_ += sizeof value;
    return value;
  }

  Result<std::string> text(const std::string& what, int32_t most) {
    CUTAWAY_ASSIGN(const int32_t size, number("the length of " + what, most));
    if (bytes_.size() - pos_ < static_cast<size_t>(size)) return short_of(what);
    std::string out(reinterpret_cast<const char*>(bytes_.data()) + pos_, static_cast<size_t>(size));
    pos_ += out.size();
    return out;
  }

  Result<std::vector<float>> floats(const std::string& what, int32_t n) {
    const size_t size = static_cast<size_t>(n) * sizeof(float);
    if (bytes_.size() - pos_ < size) return short_of(what);
    std::vector<float> out(static_cast<size_t>(n));
    std::memcpy(out.data(), bytes_.data() + pos_, size);
    pos_ += size;
    return out;
  }

 private:
  Error short_of(const std::string& what) const {
    return invalid(path_, what,
                   fmt::format("byte {}: the file ends inside {}; it is no importance matrix, or "
                               "was cut",
                               pos_, what));
  }

  const std::string& path_;
  std::span<const uint8_t> bytes_;
  size_t pos_ = 0;
};

Result<ImportanceMatrix> read_legacy(const std::string& path, std::span<const uint8_t> mapped) {
  constexpr int32_t kMostEntries = 1 << 20, kMostName = 1024, kMost = INT32_MAX;
  Bytes bytes(path, mapped);
  ImportanceMatrix out;
  CUTAWAY_ASSIGN(const int32_t entries, bytes.number("the number of entries", kMostEntries));
  if (entries == 0) return invalid(path, "", "there is no importance in it (0 entries)");
  for (int32_t i = 0; i < entries; ++i) {
    CUTAWAY_ASSIGN(const std::string name,
                   bytes.text(fmt::format("the name of entry {}", i), kMostName));
    CUTAWAY_ASSIGN(const int32_t calls, bytes.number("the calls of " + in_quotes(name), kMost));
    CUTAWAY_ASSIGN(const int32_t n, bytes.number("the columns of " + in_quotes(name), kMost));
    if (n == 0) return invalid(path, name, fmt::format("{} has 0 columns", in_quotes(name)));
    Importance importance;
    CUTAWAY_ASSIGN(importance.values, bytes.floats("the values of " + in_quotes(name), n));
    // The values are means times calls.
    for (float& value : importance.values)
      value = calls > 0 ? value / static_cast<float>(calls) : value;
    CUTAWAY_TRY(check(path, name, importance));
    if (!out.tensors.emplace(name, std::move(importance)).second) {
      return invalid(path, name, fmt::format("{} is there twice", in_quotes(name)));
    }
  }
  if (bytes.at_end()) return out;
  CUTAWAY_ASSIGN(out.chunks, bytes.number("the number of chunks", kMost));
  if (bytes.at_end()) return out;
  CUTAWAY_ASSIGN(std::string dataset, bytes.text("the dataset's name", kMost));
  out.datasets.push_back(std::move(dataset));
  return out;
}

}  // namespace

Result<ImportanceMatrix> read_importance(const std::string& path) {
  CUTAWAY_SPAN(span, "formats::read_importance", "path", path);
  CUTAWAY_ASSIGN(const InputFile file, InputFile::open(path));
  uint8_t magic[4] = {};
  if (file.size() >= sizeof magic) CUTAWAY_TRY(file.read(0, magic));
  ImportanceMatrix out;
  if (std::memcmp(magic, "GGUF", sizeof magic) == 0) {
    CUTAWAY_ASSIGN(out, read_gguf(path));
  } else if (file.size() > kMostLegacyBytes) {
    return invalid(path, "",
                   fmt::format("it has {} bytes and is no GGUF file; an importance "
                               "matrix has at most {}",
                               file.size(), kMostLegacyBytes));
  } else {
    std::vector<uint8_t> bytes(file.size());
    CUTAWAY_TRY(file.read(0, bytes));
    CUTAWAY_ASSIGN(out, read_legacy(path, bytes));
  }
  CUTAWAY_OUT(span, "tensors", out.tensors.size(), "chunks", out.chunks);
  return out;
}

Status write_importance(const ImportanceMatrix& importance, const std::string& path, bool replace) {
  CUTAWAY_SPAN(span, "formats::write_importance", "path", path, "tensors",
               importance.tensors.size());
  if (importance.tensors.empty()) {
    return Error{ErrorCode::kInvalidArgument, "there is no importance to write", "importance"};
  }
  GgufWriter writer;
  writer.add("general.type", std::string("imatrix"));
  writer.add("imatrix.datasets", importance.datasets);
  writer.add_u32("imatrix.chunk_count", static_cast<uint32_t>(importance.chunks));
  writer.add_u32("imatrix.chunk_size", static_cast<uint32_t>(importance.chunk_size));
  std::vector<std::vector<float>> sums;
  sums.reserve(importance.tensors.size());
  const auto bytes_of = [](const std::vector<float>& values) {
    return std::span(reinterpret_cast<const uint8_t*>(values.data()),
                     values.size() * sizeof(float));
  };
  for (const auto& [name, entry] : importance.tensors) {
    const size_t columns = entry.values.size() / static_cast<size_t>(entry.matrices);
    std::vector<float>& sum = sums.emplace_back(entry.values);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] *= entry.counts[i / columns];
    writer.add_tensor(name + std::string(kSums), DType::kF32,
                      Shape{entry.matrices, static_cast<int64_t>(columns)}, bytes_of(sum));
    writer.add_tensor(name + std::string(kCounts), DType::kF32, Shape{entry.matrices, 1},
                      bytes_of(entry.counts));
  }
  CUTAWAY_TRY(writer.write(path, replace));
  CUTAWAY_OUT(span, "bytes", writer.file_bytes());
  return {};
}

}  // namespace cutaway::formats
