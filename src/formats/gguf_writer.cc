#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "base/whole_file.h"
#include "formats/gguf.h"
#include "formats/gguf_types.h"
#include "formats/sniff.h"
#include "trace/trace.h"

namespace cutaway::formats {
namespace {

constexpr uint32_t kVersion = 3;
const char* const kAlignmentKey = "general.alignment";

void put_bytes(std::vector<uint8_t>& out, const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  out.insert(out.end(), bytes, bytes + size);
}

template <typename T>
void put(std::vector<uint8_t>& out, T value) {
  put_bytes(out, &value, sizeof value);
}

void put_text(std::vector<uint8_t>& out, const std::string& text) {
  put<uint64_t>(out, text.size());
  put_bytes(out, text.data(), text.size());
}

uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

bool fits_f32(double value) { return static_cast<double>(static_cast<float>(value)) == value; }

bool fits_i32(int64_t value) { return value == static_cast<int32_t>(value); }

// The narrower of two types when it holds every element exactly: other readers expect u32, i32 and
// f32 for most keys.
template <typename T, typename Fits>
uint32_t narrowest(const std::vector<T>& values, Fits fits, uint32_t narrow, uint32_t wide) {
  for (const T value : values) {
    if (!fits(value)) return wide;
  }
  return narrow;
}

// The GGUF value type of a value; of its elements, for an array.
uint32_t natural_type(const MetaValue& value) {
  if (std::holds_alternative<bool>(value)) return kGgufBool;
  if (const auto* i = std::get_if<int64_t>(&value)) return fits_i32(*i) ? kGgufI32 : kGgufI64;
  if (const auto* u = std::get_if<uint64_t>(&value)) {
    return *u <= std::numeric_limits<uint32_t>::max() ? kGgufU32 : kGgufU64;
  }
  if (const auto* d = std::get_if<double>(&value)) return fits_f32(*d) ? kGgufF32 : kGgufF64;
  if (std::holds_alternative<std::string>(value)) return kGgufString;
  if (const auto* v = std::get_if<std::vector<int64_t>>(&value)) {
    return narrowest(*v, fits_i32, kGgufI32, kGgufI64);
  }
  if (const auto* v = std::get_if<std::vector<double>>(&value)) {
    return narrowest(*v, fits_f32, kGgufF32, kGgufF64);
  }
  if (std::holds_alternative<std::vector<std::string>>(value)) return kGgufString;
  return kGgufBool;
}

template <typename T>
void put_number(std::vector<uint8_t>& out, uint32_t type, T value) {
  switch (type) {
    case kGgufU8:
      return put(out, static_cast<uint8_t>(value));
    case kGgufI8:
      return put(out, static_cast<int8_t>(value));
    case kGgufU16:
      return put(out, static_cast<uint16_t>(value));
    case kGgufI16:
      return put(out, static_cast<int16_t>(value));
    case kGgufU32:
      return put(out, static_cast<uint32_t>(value));
    case kGgufI32:
      return put(out, static_cast<int32_t>(value));
    case kGgufF32:
      return put(out, static_cast<float>(value));
    case kGgufU64:
      return put(out, static_cast<uint64_t>(value));
    case kGgufI64:
      return put(out, static_cast<int64_t>(value));
    default:
      return put(out, static_cast<double>(value));
  }
}

// `type` of a scalar, or of an array's elements.
struct PutValue {
  std::vector<uint8_t>& out;
  uint32_t type;

  void operator()(bool value) const {
    put(out, type);
    put<uint8_t>(out, value ? 1 : 0);
  }
  void operator()(int64_t value) const { number(value); }
  void operator()(uint64_t value) const { number(value); }
  void operator()(double value) const { number(value); }
  void operator()(const std::string& value) const {
    put(out, type);
    put_text(out, value);
  }
  void operator()(const std::vector<int64_t>& values) const { numbers(values); }
  void operator()(const std::vector<double>& values) const { numbers(values); }
  void operator()(const std::vector<std::string>& values) const {
    begin_array(values.size());
    for (const std::string& value : values) put_text(out, value);
  }
  void operator()(const std::vector<bool>& values) const {
    begin_array(values.size());
    for (const bool value : values) put<uint8_t>(out, value ? 1 : 0);
  }

 private:
  template <typename T>
  void number(T value) const {
    put(out, type);
    put_number(out, type, value);
  }
  template <typename T>
  void numbers(const std::vector<T>& values) const {
    begin_array(values.size());
    for (const T value : values) put_number(out, type, value);
  }
  void begin_array(size_t n) const {
    put<uint32_t>(out, kGgufArray);
    put(out, type);
    put<uint64_t>(out, n);
  }
};

Error bad_tensor(const StoredTensor& tensor, const std::string& what) {
  return {ErrorCode::kInvalidArgument, fmt::format("tensor {} {}", in_quotes(tensor.name), what),
          tensor.name};
}

}  // namespace

void GgufWriter::add(std::string key, MetaValue value) {
  CUTAWAY_SPAN(span, "formats::GgufWriter::add", "key", key);
  const uint32_t type = natural_type(value);
  entries_.push_back({std::move(key), type, std::move(value)});
}

void GgufWriter::add_u32(std::string key, uint32_t value) {
  CUTAWAY_SPAN(span, "formats::GgufWriter::add_u32", "key", key, "value", value);
  entries_.push_back({std::move(key), kGgufU32, static_cast<uint64_t>(value)});
}

void GgufWriter::add_f32(std::string key, float value) {
  CUTAWAY_SPAN(span, "formats::GgufWriter::add_f32", "key", key, "value", value);
  entries_.push_back({std::move(key), kGgufF32, static_cast<double>(value)});
}

void GgufWriter::add_from(const ModelFile& file, size_t index) {
  const auto& [key, value] = file.metadata.entries()[index];
  CUTAWAY_SPAN(span, "formats::GgufWriter::add_from", "file", file.path, "key", key);
  const bool known = index < file.metadata_types.size();
  entries_.push_back({key, known ? file.metadata_types[index] : natural_type(value), value});
}

void GgufWriter::add_tensor(std::string name, DType dtype, Shape shape,
                            std::span<const uint8_t> bytes) {
  CUTAWAY_SPAN(span, "formats::GgufWriter::add_tensor", "name", name, "type", dtype_name(dtype),
               "bytes", bytes.size());
  tensors_.push_back({{std::move(name), dtype, shape}, bytes, nullptr});
}

void GgufWriter::add_tensor(std::string name, DType dtype, Shape shape, Produce produce) {
  CUTAWAY_SPAN(span, "formats::GgufWriter::add_tensor", "name", name, "type", dtype_name(dtype),
               "produced", true);
  tensors_.push_back({{std::move(name), dtype, shape}, {}, std::move(produce)});
}

uint64_t GgufWriter::Tensor::size() const {
  if (!produce) return bytes.size();
  return dtype_bytes(stored.dtype, static_cast<size_t>(stored.shape.elements()));
}

Status GgufWriter::check_tensor(const Tensor& entry) {
  CUTAWAY_SPAN(span, "formats::GgufWriter::check_tensor", "name", entry.stored.name);
  const StoredTensor& tensor = entry.stored;
  if (tensor.name.empty() || tensor.name.size() > kGgufMaxTensorNameBytes) {
    return bad_tensor(tensor, fmt::format("has a name of {} bytes, expected 1 to {}",
                                          tensor.name.size(), kGgufMaxTensorNameBytes));
  }
  if (tensor.shape.rank() < 1) return bad_tensor(tensor, "has no dimensions, expected 1 to 4");
  uint64_t elements = 1;
  for (int i = 0; i < tensor.shape.rank(); ++i) {
    const int64_t dim = tensor.shape[i];
    if (dim < 1 || __builtin_mul_overflow(elements, static_cast<uint64_t>(dim), &elements) ||
        elements > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return bad_tensor(tensor, "has the shape " + tensor.shape.text() + ", which is not possible");
    }
  }
  const DTypeTraits& traits = dtype_traits(tensor.dtype);
  const int64_t row = tensor.shape[tensor.shape.rank() - 1];
  if (row % traits.block_elements != 0) {
    return bad_tensor(tensor, fmt::format("has rows of {} elements, {} needs a multiple of {}", row,
                                          traits.name, traits.block_elements));
  }
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements / static_cast<uint64_t>(traits.block_elements),
                             static_cast<uint64_t>(traits.block_bytes), &bytes) ||
      (!entry.produce && bytes != entry.bytes.size())) {
    return bad_tensor(
        tensor, fmt::format("of shape {} {} was given {} bytes, expected {}", tensor.shape.text(),
                            traits.name, entry.bytes.size(), bytes));
  }
  CUTAWAY_OUT(span, "bytes", bytes);
  return {};
}

Result<uint64_t> GgufWriter::alignment() const {
  for (const Entry& entry : entries_) {
    if (entry.key != kAlignmentKey) continue;
    uint64_t value = 0;
    if (const auto* u = std::get_if<uint64_t>(&entry.value)) value = *u;
    if (value < 8 || value > kGgufMaxAlignment || value % 8 != 0) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("metadata {} must be an unsigned multiple of 8 up to {}",
                               kAlignmentKey, kGgufMaxAlignment),
                   kAlignmentKey};
    }
    return value;
  }
  return kGgufDefaultAlignment;
}

Status GgufWriter::check() const {
  CUTAWAY_SPAN(span, "formats::GgufWriter::check", "metadata", entries_.size(), "tensors",
               tensors_.size());
  std::unordered_set<std::string> seen;
  for (const Entry& entry : entries_) {
    if (entry.key.empty() || entry.key.size() > kGgufMaxKeyBytes) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("metadata key {} has {} bytes, expected 1 to {}",
                               in_quotes(entry.key), entry.key.size(), kGgufMaxKeyBytes),
                   entry.key};
    }
    if (!seen.insert(entry.key).second) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("metadata key {} was added twice", in_quotes(entry.key)), entry.key};
    }
  }
  CUTAWAY_TRY(alignment());
  seen.clear();
  for (const Tensor& tensor : tensors_) {
    CUTAWAY_TRY(check_tensor(tensor));
    if (!seen.insert(tensor.stored.name).second) {
      return bad_tensor(tensor.stored, "was added twice");
    }
  }
  CUTAWAY_OUT(span, "ok", true);
  return {};
}

// Everything before the data section, padded to where that begins.
std::vector<uint8_t> GgufWriter::head(uint64_t alignment) const {
  std::vector<uint8_t> out;
  put_bytes(out, "GGUF", 4);
  put(out, kVersion);
  put<uint64_t>(out, tensors_.size());
  put<uint64_t>(out, entries_.size());
  for (const Entry& entry : entries_) {
    put_text(out, entry.key);
    std::visit(PutValue{out, entry.gguf_type}, entry.value);
  }
  uint64_t offset = 0;
  for (const Tensor& entry : tensors_) {
    const StoredTensor& tensor = entry.stored;
    put_text(out, tensor.name);
    put<uint32_t>(out, static_cast<uint32_t>(tensor.shape.rank()));
    for (int i = tensor.shape.rank(); i-- > 0;) {
      put<uint64_t>(out, static_cast<uint64_t>(tensor.shape[i]));
    }
    put(out, gguf_tensor_type(tensor.dtype));
    put(out, offset);
    offset = align_up(offset + entry.size(), alignment);
  }
  out.resize(align_up(out.size(), alignment));
  return out;
}

uint64_t GgufWriter::file_bytes() const {
  CUTAWAY_SPAN(span, "formats::GgufWriter::file_bytes", "tensors", tensors_.size());
  CUTAWAY_CHECK(check().ok());
  const uint64_t align = alignment().value();
  uint64_t bytes = head(align).size();
  for (const Tensor& tensor : tensors_) bytes += align_up(tensor.size(), align);
  CUTAWAY_OUT(span, "bytes", bytes);
  return bytes;
}

Status GgufWriter::write(const std::string& path, bool replace) const {
  CUTAWAY_SPAN(span, "formats::GgufWriter::write", "path", path, "tensors", tensors_.size());
  CUTAWAY_TRY(check());
  const uint64_t align = alignment().value();
  CUTAWAY_ASSIGN(WholeFile file, WholeFile::create(path));
  uint64_t written = 0;
  const Append append = [&](std::span<const uint8_t> bytes) -> Status {
    written += bytes.size();
    return file.append(bytes.data(), bytes.size());
  };
  CUTAWAY_TRY(append(head(align)));
  const std::vector<uint8_t> zeros(align);
  for (const Tensor& tensor : tensors_) {
    const uint64_t begin = written;
    CUTAWAY_TRY(tensor.produce ? tensor.produce(append) : append(tensor.bytes));
    if (written - begin != tensor.size()) {
      return bad_tensor(tensor.stored, fmt::format("was produced with {} bytes, expected {}",
                                                   written - begin, tensor.size()));
    }
    CUTAWAY_TRY(append(std::span(zeros).first(align_up(written, align) - written)));
  }
  CUTAWAY_TRY(file.publish(replace ? WholeFile::Existing::kReplaced : WholeFile::Existing::kKept));
  CUTAWAY_OUT(span, "bytes", written);
  return {};
}

std::vector<uint8_t> GgufWriter::to_bytes() const {
  CUTAWAY_SPAN(span, "formats::GgufWriter::to_bytes", "tensors", tensors_.size());
  CUTAWAY_CHECK(check().ok());
  const uint64_t align = alignment().value();
  std::vector<uint8_t> out = head(align);
  for (const Tensor& tensor : tensors_) {
    CUTAWAY_CHECK(!tensor.produce);
    put_bytes(out, tensor.bytes.data(), tensor.bytes.size());
    out.resize(align_up(out.size(), align));
  }
  CUTAWAY_OUT(span, "bytes", out.size());
  return out;
}

}  // namespace cutaway::formats
