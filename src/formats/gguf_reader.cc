#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/file_window.h"
#include "formats/gguf.h"
#include "formats/gguf_types.h"
#include "formats/sniff.h"
#include "trace/trace.h"

namespace cutaway::formats {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read without byte swaps");

// Fewest bytes that a key–value pair and a tensor's entry take: what bounds their counts.
constexpr uint64_t kMinPairBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
// Longer texts go past the window's buffer.
constexpr uint64_t kBufferedText = uint64_t{64} << 10;

std::string type_name(uint32_t type) {
  const char* name = gguf_tensor_type_name(type);
  return name != nullptr ? name : fmt::format("number {}", type);
}

// One pass over a file. Every read is checked against what is left; an error stops everything. The
// file's name stands in front of each message.
class Parser {
 public:
  // `file.files[0]` is what is read.
  explicit Parser(ModelFile& file)
      : file_(file), name_(file.path), file_bytes_(file.files[0].size()), window_(file.files[0]) {}

  Status run() {
    uint64_t n_tensors = 0, n_pairs = 0;
    CUTAWAY_TRY(header(n_tensors, n_pairs));
    for (uint64_t i = 0; i < n_pairs; ++i) CUTAWAY_TRY(pair(i));
    CUTAWAY_TRY(alignment());
    for (uint64_t i = 0; i < n_tensors; ++i) CUTAWAY_TRY(tensor_entry(i));
    CUTAWAY_TRY(place_tensors());
    return no_overlaps();
  }

 private:
  struct Entry {
    uint64_t offset = 0;     // from the start of the data section
    uint64_t size = 0;       // bytes
    uint64_t offset_at = 0;  // where the file says so
  };

  uint64_t left() const { return window_.left(); }
  uint64_t here() const { return window_.position(); }

  template <typename... Args>
  Error invalid(uint64_t at, const std::string& field, fmt::format_string<Args...> format,
                Args&&... args) const {
    return {
        ErrorCode::kInvalidFile,
        fmt::format("{}: byte {}: {}", name_, at, fmt::format(format, std::forward<Args>(args)...)),
        field};
  }

  Error cut_short(const std::string& what, uint64_t needed) const {
    return invalid(here(), "", "{} takes {} bytes, but the file ends after {} more (cut short?)",
                   what, needed, left());
  }

  // `what` makes the name of the field, for an error only.
  template <typename T, typename What>
  Status read(T& out, const What& what) {
    if (left() < sizeof(T)) return cut_short(what(), sizeof(T));
    const uint8_t* from = window_.take(sizeof(T));
    if (from == nullptr) return window_.error();
    std::memcpy(&out, from, sizeof(T));
    return {};
  }

  template <typename What>
  Status text(std::string& out, uint64_t max, const What& what) {
    const uint64_t at = here();
    uint64_t length = 0;
    CUTAWAY_TRY(read(length, [&] { return "the length of " + what(); }));
    if (length > left()) {
      return invalid(at, "", "{} has a length of {} bytes, but {} are left in the file", what(),
                     length, left());
    }
    if (length > max) {
      return invalid(at, "", "{} has a length of {} bytes, at most {} are allowed", what(), length,
                     max);
    }
    if (length > kBufferedText) {
      out.resize(length);
      return window_.take_into({reinterpret_cast<uint8_t*>(out.data()), length});
    }
    const uint8_t* from = window_.take(length);
    if (from == nullptr) return window_.error();
    out.assign(reinterpret_cast<const char*>(from), length);
    return {};
  }

  Status header(uint64_t& n_tensors, uint64_t& n_pairs) {
    const uint64_t head = std::min<uint64_t>(file_bytes_, 4096);
    const uint8_t* first = window_.peek(head);
    if (first == nullptr) return window_.error();
    const Sniffed found = sniff({first, head});
    if (found.kind != FileKind::kGguf) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("{} is {}; expected a GGUF file", name_, found.description),
                   "magic"};
    }
    window_.move_to(4);
    uint32_t version = 0;
    CUTAWAY_TRY(read(version, [] { return std::string("the version"); }));
    if (version != 0 && (version & 0xFFFF) == 0) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("{}: byte 4: this GGUF file is big-endian (version {:#010x}); only "
                               "little-endian files are read",
                               name_, version),
                   "version"};
    }
    if (version != 2 && version != 3) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("{}: byte 4: GGUF version {} is not read; versions 2 and 3 are",
                               name_, version),
                   "version"};
    }
    CUTAWAY_TRY(count(n_tensors, "the tensor count", kMinTensorBytes));
    return count(n_pairs, "the metadata count", kMinPairBytes);
  }

  Status count(uint64_t& out, const std::string& what, uint64_t min_bytes_each) {
    const uint64_t at = here();
    CUTAWAY_TRY(read(out, [&] { return what; }));
    if (out > left() / min_bytes_each) {
      return invalid(at, "", "{} is {}, but the {} bytes that are left hold at most {}", what, out,
                     left(), left() / min_bytes_each);
    }
    return {};
  }

  Status pair(uint64_t index) {
    const uint64_t at = here();
    std::string field;
    CUTAWAY_TRY(
        text(field, kGgufMaxKeyBytes, [&] { return fmt::format("metadata key {}", index); }));
    if (field.empty()) return invalid(at, "", "metadata key {} is empty", index);
    uint32_t type = 0;
    CUTAWAY_TRY(read(type, [&] { return "the type of " + in_quotes(field); }));
    MetaValue value;
    if (type == kGgufArray) {
      CUTAWAY_TRY(array(field, value, type));
    } else {
      CUTAWAY_TRY(scalar(type, field, value));
    }
    if (!file_.metadata.insert(field, std::move(value))) {
      return invalid(at, field, "metadata key {} appears twice", in_quotes(field));
    }
    file_.metadata_types.push_back(type);
    return {};
  }

  template <typename Stored, typename Widened>
  Status widen(const std::string& field, MetaValue& value) {
    Stored stored{};
    CUTAWAY_TRY(read(stored, [&] { return "the value of " + in_quotes(field); }));
    value = static_cast<Widened>(stored);
    return {};
  }

  Status scalar(uint32_t type, const std::string& field, MetaValue& value) {
    switch (type) {
      case kGgufU8:
        return widen<uint8_t, uint64_t>(field, value);
      case kGgufI8:
        return widen<int8_t, int64_t>(field, value);
      case kGgufU16:
        return widen<uint16_t, uint64_t>(field, value);
      case kGgufI16:
        return widen<int16_t, int64_t>(field, value);
      case kGgufU32:
        return widen<uint32_t, uint64_t>(field, value);
      case kGgufI32:
        return widen<int32_t, int64_t>(field, value);
      case kGgufU64:
        return widen<uint64_t, uint64_t>(field, value);
      case kGgufI64:
        return widen<int64_t, int64_t>(field, value);
      case kGgufF32:
        return widen<float, double>(field, value);
      case kGgufF64:
        return widen<double, double>(field, value);
      case kGgufBool: {
        uint8_t byte = 0;
        CUTAWAY_TRY(read(byte, [&] { return "the value of " + in_quotes(field); }));
        if (byte > 1) {
          return invalid(here() - 1, field, "metadata {} is the boolean {}, expected 0 or 1",
                         in_quotes(field), byte);
        }
        value = byte == 1;
        return {};
      }
      case kGgufString: {
        std::string string;
        CUTAWAY_TRY(
            text(string, kGgufMaxStringBytes, [&] { return "metadata " + in_quotes(field); }));
        value = std::move(string);
        return {};
      }
      default:
        return invalid(here() - 4, field, "metadata {} has value type {}, expected 0 to 12",
                       in_quotes(field), type);
    }
  }

  template <typename Stored, typename Widened>
  Status widen_array(uint64_t n, MetaValue& value) {
    constexpr uint64_t kStep = uint64_t{64} << 10;
    std::vector<Widened> out(n);
    for (uint64_t i = 0; i < n; ++i) {
      // The elements of a step lie together in the window.
      const bool next_step = i % kStep == 0;
      if (next_step && window_.peek(std::min(kStep, n - i) * sizeof(Stored)) == nullptr) {
        return window_.error();
      }
      Stored stored;
      std::memcpy(&stored, window_.take(sizeof(Stored)), sizeof(Stored));
      out[i] = static_cast<Widened>(stored);
    }
    value = std::move(out);
    return {};
  }

  // `type` becomes that of the elements.
  Status array(const std::string& field, MetaValue& value, uint32_t& type) {
    const uint64_t at = here();
    uint64_t n = 0;
    CUTAWAY_TRY(read(type, [&] { return "the element type of " + in_quotes(field); }));
    if (type == kGgufArray) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("{}: byte {}: metadata {} is an array of arrays (depth 2); arrays "
                               "of plain values (depth 1) are read",
                               name_, at, in_quotes(field)),
                   field};
    }
    const uint64_t element = gguf_value_bytes(type);
    if (element == 0) {
      return invalid(at, field, "metadata {} is an array of value type {}, expected 0 to 12",
                     in_quotes(field), type);
    }
    CUTAWAY_TRY(read(n, [&] { return "the length of " + in_quotes(field); }));
    if (n > left() / element) {
      return invalid(at + 4, field,
                     "metadata {} is an array of {} elements, but the {} bytes that are left hold "
                     "at most {}",
                     in_quotes(field), n, left(), left() / element);
    }
    if (n > kGgufMaxArrayElements) {
      return invalid(at + 4, field, "metadata {} is an array of {} elements, at most {} are read",
                     in_quotes(field), n, kGgufMaxArrayElements);
    }
    return elements(type, n, field, value);
  }

  Status elements(uint32_t type, uint64_t n, const std::string& field, MetaValue& value) {
    switch (type) {
      case kGgufU8:
        return widen_array<uint8_t, int64_t>(n, value);
      case kGgufI8:
        return widen_array<int8_t, int64_t>(n, value);
      case kGgufU16:
        return widen_array<uint16_t, int64_t>(n, value);
      case kGgufI16:
        return widen_array<int16_t, int64_t>(n, value);
      case kGgufU32:
        return widen_array<uint32_t, int64_t>(n, value);
      case kGgufI32:
        return widen_array<int32_t, int64_t>(n, value);
      case kGgufI64:
        return widen_array<int64_t, int64_t>(n, value);
      case kGgufF32:
        return widen_array<float, double>(n, value);
      case kGgufF64:
        return widen_array<double, double>(n, value);
      case kGgufU64:
        return u64_elements(n, field, value);
      case kGgufBool:
        return bool_elements(n, field, value);
      default:
        return string_elements(n, field, value);
    }
  }

  Status u64_elements(uint64_t n, const std::string& field, MetaValue& value) {
    const uint64_t at = here();
    CUTAWAY_TRY((widen_array<uint64_t, int64_t>(n, value)));
    const auto& ids = *std::get_if<std::vector<int64_t>>(&value);
    for (uint64_t i = 0; i < n; ++i) {
      if (ids[i] < 0) {
        return invalid(at + 8 * i, field, "metadata {}, element {}, is {}, at most {} is read",
                       in_quotes(field), i, static_cast<uint64_t>(ids[i]), INT64_MAX);
      }
    }
    return {};
  }

  Status bool_elements(uint64_t n, const std::string& field, MetaValue& value) {
    std::vector<bool> out(n);
    for (uint64_t i = 0; i < n; ++i) {
      const uint8_t* byte = window_.take(1);
      if (byte == nullptr) return window_.error();
      if (*byte > 1) {
        return invalid(here() - 1, field,
                       "metadata {}, element {}, is the boolean {}, expected 0 or 1",
                       in_quotes(field), i, *byte);
      }
      out[i] = *byte == 1;
    }
    value = std::move(out);
    return {};
  }

  Status string_elements(uint64_t n, const std::string& field, MetaValue& value) {
    std::vector<std::string> out;
    out.reserve(n);
    for (uint64_t i = 0; i < n; ++i) {
      CUTAWAY_TRY(text(out.emplace_back(), kGgufMaxStringBytes, [&] {
        return fmt::format("element {} of {} of metadata {}", i, n, in_quotes(field));
      }));
    }
    value = std::move(out);
    return {};
  }

  Status alignment() {
    static const std::string kKey = "general.alignment";
    if (!file_.metadata.has(kKey)) return {};
    const auto value = file_.metadata.integer(kKey, 8, kGgufMaxAlignment);
    if (!value.ok()) return value.error().within(name_);
    if (*value % 8 != 0) {
      return Error{ErrorCode::kInvalidFile,
                   fmt::format("{}: metadata {} is {}, expected a multiple of 8 up to {}", name_,
                               kKey, *value, kGgufMaxAlignment),
                   kKey};
    }
    alignment_ = static_cast<uint64_t>(*value);
    return {};
  }

  Status dims(const std::string& name, std::array<int64_t, 4>& out, uint32_t& rank,
              uint64_t& elements) {
    const uint64_t at = here();
    CUTAWAY_TRY(read(rank, [&] { return "the rank of tensor " + in_quotes(name); }));
    if (rank < 1 || rank > 4) {
      return invalid(at, name, "tensor {} has {} dimensions, expected 1 to 4", in_quotes(name),
                     rank);
    }
    elements = 1;
    for (uint32_t i = 0; i < rank; ++i) {
      uint64_t dim = 0;
      CUTAWAY_TRY(
          read(dim, [&] { return fmt::format("dimension {} of tensor {}", i, in_quotes(name)); }));
      if (dim == 0 || dim > static_cast<uint64_t>(INT64_MAX)) {
        return invalid(here() - 8, name, "tensor {} has a dimension {} of {}, expected 1 to {}",
                       in_quotes(name), i, dim, INT64_MAX);
      }
      if (__builtin_mul_overflow(elements, dim, &elements) ||
          elements > static_cast<uint64_t>(INT64_MAX)) {
        return invalid(here() - 8, name, "tensor {} has more than {} elements at dimension {} ({})",
                       in_quotes(name), INT64_MAX, i, dim);
      }
      out[i] = static_cast<int64_t>(dim);
    }
    return {};
  }

  Status tensor_entry(uint64_t index) {
    const uint64_t at = here();
    StoredTensor tensor;
    CUTAWAY_TRY(text(tensor.name, kGgufMaxTensorNameBytes,
                     [&] { return fmt::format("tensor name {}", index); }));
    if (tensor.name.empty()) return invalid(at, "", "tensor name {} is empty", index);
    std::array<int64_t, 4> dim{};
    uint32_t rank = 0, type = 0;
    uint64_t elements = 0;
    CUTAWAY_TRY(dims(tensor.name, dim, rank, elements));
    CUTAWAY_TRY(read(type, [&] { return "the type of tensor " + in_quotes(tensor.name); }));
    const auto dtype = dtype_of_gguf(type);
    if (!dtype.has_value()) return unreadable_type(tensor.name, type);
    tensor.dtype = *dtype;
    const DTypeTraits& traits = dtype_traits(*dtype);
    if (dim[0] % traits.block_elements != 0) {
      return invalid(at, tensor.name,
                     "tensor {} has rows of {} elements, {} needs a multiple of {}",
                     in_quotes(tensor.name), dim[0], traits.name, traits.block_elements);
    }
    Entry entry;
    if (__builtin_mul_overflow(elements / static_cast<uint64_t>(traits.block_elements),
                               static_cast<uint64_t>(traits.block_bytes), &entry.size)) {
      return invalid(at, tensor.name, "tensor {} of {} {} elements is too large",
                     in_quotes(tensor.name), elements, traits.name);
    }
    entry.offset_at = here();
    CUTAWAY_TRY(
        read(entry.offset, [&] { return "the offset of tensor " + in_quotes(tensor.name); }));
    if (entry.offset % alignment_ != 0) {
      return invalid(entry.offset_at, tensor.name,
                     "tensor {} is at offset {}, expected a multiple of the alignment {}",
                     in_quotes(tensor.name), entry.offset, alignment_);
    }
    std::reverse(dim.begin(), dim.begin() + rank);
    tensor.shape = Shape(std::span<const int64_t>(dim.data(), rank));
    if (!file_.tensor_index.emplace(tensor.name, file_.tensors.size()).second) {
      return invalid(at, tensor.name, "tensor {} appears twice", in_quotes(tensor.name));
    }
    file_.tensors.push_back(std::move(tensor));
    entries_.push_back(entry);
    return {};
  }

  Status unreadable_type(const std::string& tensor, uint32_t type) const {
    if (gguf_tensor_type_name(type) == nullptr) {
      return invalid(here() - 4, tensor, "tensor {} has the unknown type {}; known are {}",
                     in_quotes(tensor), type, readable_tensor_types());
    }
    return Error{
        ErrorCode::kUnsupported,
        fmt::format("{}: byte {}: tensor {} has type {}, which is not read yet; {} are", name_,
                    here() - 4, in_quotes(tensor), type_name(type), readable_tensor_types()),
        tensor};
  }

  // Gives each tensor its bytes. The data section begins at the next multiple of the alignment.
  Status place_tensors() {
    if (file_.tensors.empty()) return {};
    const uint64_t data = (here() + alignment_ - 1) / alignment_ * alignment_;
    const uint64_t room = data <= file_bytes_ ? file_bytes_ - data : 0;
    for (size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      StoredTensor& tensor = file_.tensors[i];
      if (entry.offset > room || entry.size > room - entry.offset) {
        return invalid(entry.offset_at, tensor.name,
                       "tensor {} needs {} bytes at offset {} of the data, which has {} bytes "
                       "(cut short?)",
                       in_quotes(tensor.name), entry.size, entry.offset, room);
      }
      tensor.offset = data + entry.offset;
      tensor.size = entry.size;
    }
    return {};
  }

  Status no_overlaps() const {
    std::vector<size_t> order(entries_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      return entries_[a].offset != entries_[b].offset ? entries_[a].offset < entries_[b].offset
                                                      : a < b;
    });
    for (size_t i = 1; i < order.size(); ++i) {
      const Entry& before = entries_[order[i - 1]];
      const Entry& after = entries_[order[i]];
      if (before.offset + before.size > after.offset) {
        return invalid(after.offset_at, file_.tensors[order[i]].name,
                       "tensor {} at offset {} overlaps tensor {} (offset {}, {} bytes)",
                       in_quotes(file_.tensors[order[i]].name), after.offset,
                       in_quotes(file_.tensors[order[i - 1]].name), before.offset, before.size);
      }
    }
    return {};
  }

  ModelFile& file_;
  const std::string& name_;
  const uint64_t file_bytes_;
  FileWindow window_;
  uint64_t alignment_ = kGgufDefaultAlignment;
  std::vector<Entry> entries_;
};

Result<std::shared_ptr<ModelFile>> parse(InputFile input) {
  auto file = std::make_shared<ModelFile>();
  file->format = "gguf";
  file->path = input.path();
  file->files.push_back(std::move(input));
  CUTAWAY_TRY(Parser(*file).run());
  return file;
}

}  // namespace

Result<std::shared_ptr<ModelFile>> open_gguf_shard(const std::string& path) {
  CUTAWAY_SPAN(span, "formats::open_gguf_shard", "path", path);
  CUTAWAY_ASSIGN(InputFile input, InputFile::open(path));
  CUTAWAY_ASSIGN(auto opened, parse(std::move(input)));
  CUTAWAY_OUT(span, "tensors", opened->tensors.size(), "metadata",
              opened->metadata.entries().size(), "bytes", opened->total_bytes());
  return opened;
}

Result<std::shared_ptr<const ModelFile>> open_gguf(const std::string& path) {
  CUTAWAY_SPAN(span, "formats::open_gguf", "path", path);
  CUTAWAY_ASSIGN(std::shared_ptr<const ModelFile> opened, open_gguf_shard(path));
  CUTAWAY_OUT(span, "tensors", opened->tensors.size());
  return opened;
}

Result<std::shared_ptr<const ModelFile>> parse_gguf(std::span<const uint8_t> bytes,
                                                    const std::string& name) {
  CUTAWAY_SPAN(span, "formats::parse_gguf", "name", name, "bytes", bytes.size());
  CUTAWAY_ASSIGN(std::shared_ptr<const ModelFile> parsed, parse(InputFile::over(bytes, name)));
  CUTAWAY_OUT(span, "tensors", parsed->tensors.size(), "metadata",
              parsed->metadata.entries().size());
  return parsed;
}

}  // namespace cutaway::formats
