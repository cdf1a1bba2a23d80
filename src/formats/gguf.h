// GGUF v2 and v3: read, every field validated before use; and written.
// The byte format is described in docs/formats/gguf.md.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/model_file.h"

namespace cutaway::formats {

// Opens and validates a file, whose tensors are read later. Memory use is bounded by the file's own
// size (a count that the remaining bytes cannot hold is refused before anything is allocated).
// Errors: kNotFound, kIo, kInvalidFile (names the field, its byte offset and value, and what is
// allowed), kUnsupported (a tensor type or version that this build does not read: names it).
Result<std::shared_ptr<const ModelFile>> open_gguf(const std::string& path);

// The same, for who puts shards together (split.h).
Result<std::shared_ptr<ModelFile>> open_gguf_shard(const std::string& path);

// The same over bytes that the caller keeps alive (fuzzers, tests).
Result<std::shared_ptr<const ModelFile>> parse_gguf(std::span<const uint8_t> bytes,
                                                    const std::string& name);

// Writes a GGUF v3 file. Metadata and tensors keep the order of insertion. A value that add() is
// given gets the narrowest of GGUF's 32- and 64-bit types that holds it exactly, since that is what
// readers expect; reading it back gives an equal value.
class GgufWriter {
 public:
  void add(std::string key, MetaValue value);
  // Whatever the value, exactly this type in the file.
  void add_u32(std::string key, uint32_t value);
  void add_f32(std::string key, float value);
  // Entry `index` of a file's metadata, in the type that it has there.
  void add_from(const ModelFile& file, size_t index);
  // `bytes` must stay valid until write().
  void add_tensor(std::string name, DType dtype, Shape shape, std::span<const uint8_t> bytes);
  // Bytes that are made while the file is written, so that a tensor is never in memory as a whole:
  // write() calls `produce`, in the order of the tensors, which hands the bytes to `append` part by
  // part. An error of either ends write(), which returns it.
  using Append = std::function<Status(std::span<const uint8_t>)>;
  using Produce = std::function<Status(const Append& append)>;
  void add_tensor(std::string name, DType dtype, Shape shape, Produce produce);
  // kInvalidArgument names what could not be read back: a key or tensor added twice, an empty or
  // over-long name, bytes that do not fit type and shape, a wrong general.alignment.
  Status check() const;
  // Size of the file that write() makes. Precondition: check().ok().
  uint64_t file_bytes() const;
  // To a temporary file beside `path`, synced, then renamed: never half a file. Without `replace`,
  // a file that is there stays and is an error. Errors: check()'s, kIo, a producer's (too few or
  // too many bytes are kInvalidArgument).
  Status write(const std::string& path, bool replace = true) const;
  // The same bytes. Preconditions: check().ok(), no tensor that is produced.
  std::vector<uint8_t> to_bytes() const;

 private:
  struct Entry {
    std::string key;
    uint32_t gguf_type;  // of the value; of its elements, for an array
    MetaValue value;
  };
  struct Tensor {
    StoredTensor stored;
    std::span<const uint8_t> bytes;
    Produce produce;        // or null: `bytes`
    uint64_t size() const;  // bytes
  };
  static Status check_tensor(const Tensor& tensor);
  Result<uint64_t> alignment() const;
  std::vector<uint8_t> head(uint64_t alignment) const;

  std::vector<Entry> entries_;
  std::vector<Tensor> tensors_;
};

}  // namespace cutaway::formats
