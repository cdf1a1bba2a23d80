// Reads tensors of a .safetensors file as f32: F32, F16, BF16 and F64. (Format: 8-byte
// little-endian header length, JSON header, raw data.)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/input_file.h"
#include "base/result.h"

namespace cutaway::formats {

class SafetensorsFile {
 public:
  struct Tensor {
    std::string name, dtype;
    std::vector<int64_t> shape;
    uint64_t begin = 0, bytes = 0;  // in the file
    int64_t elements() const;
  };

  // Reads and checks the header: sizes against dtypes and shapes, offsets against the file. Errors:
  // kNotFound, kIo, kInvalidFile.
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // Error kNotFound names the file, the name and the nearest one that is there.
  Result<Tensor> find(const std::string& name) const;
  // Errors: kUnsupported (a dtype that holds no floats), kTooLarge, kIo.
  Result<std::vector<float>> read(const Tensor& tensor) const;

 private:
  InputFile file_;
  std::vector<Tensor> tensors_;
};

}  // namespace cutaway::formats
