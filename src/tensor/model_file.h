// What every model format yields: neutral key–value metadata and a directory of named tensors.
// formats/ fills it, arch/ and text/ read it; no mapping of names happens here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/input_file.h"
#include "base/result.h"
#include "tensor/tensor.h"

namespace cutaway {

// One metadata value. Integers of every width are widened; strings are the file's bytes.
using MetaValue = std::variant<bool, int64_t, uint64_t, double, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>, std::vector<bool>>;

// Reads a typed value or says what is wrong with it: every error names the key and the value found.
class Metadata {
 public:
  // Returns false when the key was there already (the first value stays).
  bool insert(std::string key, MetaValue value);
  const MetaValue* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  // kNotFound when absent, kInvalidFile when of another kind or out of range. Integers are accepted
  // for floats; a float never for an integer.
  Result<int64_t> integer(std::string_view key, int64_t min, int64_t max) const;
  Result<double> number(std::string_view key) const;  // finite
  Result<std::string> string(std::string_view key) const;
  Result<bool> boolean(std::string_view key) const;
  // Pointers into this object; arrays of strings / integers / numbers.
  Result<const std::vector<std::string>*> strings(std::string_view key) const;
  Result<std::vector<int64_t>> integers(std::string_view key) const;
  Result<std::vector<double>> numbers(std::string_view key) const;

  // The same, with a default when the key is absent (a present but wrong value stays an error).
  Result<int64_t> integer_or(std::string_view key, int64_t fallback, int64_t min,
                             int64_t max) const;
  Result<double> number_or(std::string_view key, double fallback) const;
  Result<std::string> string_or(std::string_view key, std::string fallback) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;

  // In the file's order.
  const std::vector<std::pair<std::string, MetaValue>>& entries() const { return entries_; }

 private:
  std::vector<std::pair<std::string, MetaValue>> entries_;
  std::unordered_map<std::string, size_t> index_;
};

// A tensor as the file holds it: rows of blocks, little-endian.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;          // outermost first, i.e. GGUF's dimensions reversed
  size_t file = 0;      // which of ModelFile::files holds it
  uint64_t offset = 0;  // of its first byte in that file
  uint64_t size = 0;    // in bytes
};

// A validated file (or set of shards), open for as long as this object lives.
struct ModelFile {
  std::string format;  // "gguf"
  std::string path;
  std::vector<InputFile> files;
  Metadata metadata;
  // Of each metadata entry in turn, the format's own number of its type (of its elements, for an
  // array): what a writer of the same format needs to keep them as they are. Empty: not known.
  std::vector<uint32_t> metadata_types;
  std::vector<StoredTensor> tensors;  // the file's order
  std::unordered_map<std::string, size_t> tensor_index;

  const StoredTensor* find_tensor(std::string_view name) const;
  uint64_t total_bytes() const;  // of all files
  // Fills `out` with bytes of a tensor, from its byte `begin` on. Errors: InputFile::read's.
  Status read(const StoredTensor& tensor, uint64_t begin, std::span<uint8_t> out) const;
  // All bytes of a tensor.
  Result<std::vector<uint8_t>> bytes_of(const StoredTensor& tensor) const;
  // Error: InputFile::check_unchanged's, of any of the files.
  Status check_unchanged() const;
};

}  // namespace cutaway
