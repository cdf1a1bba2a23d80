// Builds GGUF files byte by byte, so that any field can hold anything. For tests only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cutaway::formats {

class GgufBytes {
 public:
  template <typename T>
  GgufBytes& put(T value) {
    const auto* from = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof value);
    return *this;
  }
  GgufBytes& u8(uint8_t v) { return put(v); }
  GgufBytes& u32(uint32_t v) { return put(v); }
  GgufBytes& u64(uint64_t v) { return put(v); }
  GgufBytes& f32(float v) { return put(v); }
  GgufBytes& raw(std::string_view text) {
    bytes_.insert(bytes_.end(), text.begin(), text.end());
    return *this;
  }
  GgufBytes& text(std::string_view text) { return u64(text.size()).raw(text); }
  GgufBytes& header(uint64_t tensors, uint64_t pairs, uint32_t version = 3) {
    return raw("GGUF").u32(version).u64(tensors).u64(pairs);
  }
  // A key and its value type; the value follows.
  GgufBytes& key(std::string_view name, uint32_t type) { return text(name).u32(type); }
  GgufBytes& array(std::string_view name, uint32_t element, uint64_t n) {
    return key(name, 9).u32(element).u64(n);
  }
  GgufBytes& tensor(std::string_view name, std::vector<uint64_t> dims, uint32_t type,
                    uint64_t offset) {
    text(name).u32(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) u64(dim);
    return u32(type).u64(offset);
  }
  GgufBytes& pad(size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  GgufBytes& zeros(size_t n) {
    bytes_.resize(bytes_.size() + n);
    return *this;
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

}  // namespace cutaway::formats
