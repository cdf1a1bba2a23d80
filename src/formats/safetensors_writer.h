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
    std::vector<int64_t> shape;  // of f32 values
  };

  // Makes a temporary file beside `path`, which commit() renames: never half a file under that
  // name. `metadata` goes under "__metadata__". Errors: kIo.
  static Result<SafetensorsWriter> create(const std::string& path,
                                          const std::vector<Tensor>& tensors,
                                          const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();  // without commit() the temporary file is removed
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;

  // Writes values at an element offset of tensor `index`. Values not written read as 0. The first
  // error is kept and returned by commit().
  void write(size_t index, int64_t element, std::span<const float> values);
  Status commit();

 private:
  SafetensorsWriter() = default;
  std::string path_, temporary_;
  int fd_ = -1;
  int64_t data_begin_ = 0;
  std::vector<int64_t> offsets_;  // bytes from data_begin_
  Status status_;
};

}  // namespace cutaway::formats
