// GGUF v2 and v3: read memory-mapped, every field validated before use; and written.
// The byte format is described in docs/formats/gguf.md.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/model_file.h"

namespace cutaway::formats {

// Maps and validates a file. Memory use is bounded by the file's own size (a count that the
// remaining bytes cannot hold is refused before anything is allocated). Errors: kNotFound, kIo,
// kInvalidFile (names the field, its byte offset and value, and what is allowed), kUnsupported (a
// tensor type or version that this build does not read: names it).
Result<std::shared_ptr<const ModelFile>> open_gguf(const std::string& path);

// The same over bytes that the caller keeps alive (fuzzers, tests).
Result<std::shared_ptr<const ModelFile>> parse_gguf(std::span<const uint8_t> bytes,
                                                    const std::string& name);

// Writes a GGUF v3 file. Metadata keeps the order of insertion.
class GgufWriter {
 public:
  void add(std::string key, MetaValue value);
  // A key whose GGUF value type matters: 4 = u32, 5 = i32, 6 = f32, …
  void add_u32(std::string key, uint32_t value);
  void add_f32(std::string key, float value);
  // `bytes` must stay valid until write().
  void add_tensor(std::string name, DType dtype, Shape shape, std::span<const uint8_t> bytes);
  // To a temporary file beside `path`, synced, then renamed: never half a file.
  Status write(const std::string& path) const;
  std::vector<uint8_t> to_bytes() const;

 private:
  struct Entry {
    std::string key;
    uint32_t gguf_type;
    MetaValue value;
  };
  std::vector<Entry> entries_;
  std::vector<StoredTensor> tensors_;
};

}  // namespace cutaway::formats
