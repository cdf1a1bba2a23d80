// Writes a .safetensors file whose tensors are known before their values: rows may arrive in any
// order, straight to disk. (Format: 8-byte little-endian header length, JSON header, raw data.)
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/whole_file.h"
#include "tensor/tensor.h"

namespace cutaway::formats {

class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    const char* dtype = "F32";  // of 4 bytes: or "I32"

    int64_t elements() const {
      return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    }
  };
  using Durability = WholeFile::Durability;

  // The file appears whole, with commit(), or not at all (base/whole_file.h). `metadata` goes under
  // "__metadata__". Errors: kIo.
  static Result<SafetensorsWriter> create(const std::string& path,
                                          const std::vector<Tensor>& tensors,
                                          const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();
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
  explicit SafetensorsWriter(WholeFile file) : file_(std::move(file)) {}

  WholeFile file_;
  int64_t data_begin_ = 0, data_bytes_ = 0;
  uint8_t* mapped_ = nullptr;
  std::vector<int64_t> offsets_;  // bytes from data_begin_
  Status status_;
};

}  // namespace cutaway::formats
