// Writes a .safetensors file whose tensors are known before their values: rows may arrive in any
// order, straight to disk. (Format: 8-byte little-endian header length, JSON header, raw data.)
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/tensor.h"

namespace cutaway::formats {

class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    const char* dtype = "F32";  // of 4 bytes: or "I32"
  };
  // Whether commit() waits until the disk has everything, or leaves that to the system.
  enum class Durability : uint8_t { kSynced, kCached };

  // Makes a temporary file beside `path`, which commit() renames: never half a file under that
  // name. `metadata` goes under "__metadata__". Errors: kIo.
  static Result<SafetensorsWriter> create(const std::string& path,
                                          const std::vector<Tensor>& tensors,
                                          const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();  // without commit() the temporary file is removed
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;

  // The file's data as memory, zeros at first: element e of the first tensor is [e], the tensors
  // follow each other. Its space is on the disk already, so that writing cannot fail. Valid until
  // commit() or the writer's end. Errors: kIo.
  Result<float*> map();

  // Writes values at an element offset of tensor `index`. Values not written read as 0. The first
  // error is kept and returned by commit().
  void write(size_t index, int64_t element, std::span<const float> values);
  Status commit(Durability durability = Durability::kSynced);

 private:
  SafetensorsWriter() = default;
  std::string path_, temporary_;
  int fd_ = -1;
  int64_t data_begin_ = 0, data_bytes_ = 0;
  uint8_t* mapped_ = nullptr;
  std::vector<int64_t> offsets_;  // bytes from data_begin_
  Status status_;
};

}  // namespace cutaway::formats
