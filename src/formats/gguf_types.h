// The numbers of the GGUF format, shared by its reader and writer. Source: the GGUF specification
// of the ggml project; docs/formats/gguf.md describes the layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tensor/dtype.h"

namespace cutaway::formats {

enum GgufValueType : uint32_t {
  kGgufU8 = 0,
  kGgufI8 = 1,
  kGgufU16 = 2,
  kGgufI16 = 3,
  kGgufU32 = 4,
  kGgufI32 = 5,
  kGgufF32 = 6,
  kGgufBool = 7,
  kGgufString = 8,
  kGgufArray = 9,
  kGgufU64 = 10,
  kGgufI64 = 11,
  kGgufF64 = 12,
};

inline constexpr uint64_t kGgufDefaultAlignment = 32;
inline constexpr uint64_t kGgufMaxAlignment = 65536;
inline constexpr uint64_t kGgufMaxKeyBytes = 65535;  // the specification's limit
// The specification says 64 bytes; longer names are in use, and harmless up to here.
inline constexpr uint64_t kGgufMaxTensorNameBytes = 1024;
// Elements of one metadata array: eight times the largest vocabulary. Bounds the eightfold widening
// of small integers.
inline constexpr uint64_t kGgufMaxArrayElements = uint64_t{1} << 21;
// Bytes of one metadata string: the largest in use is a tokenizer.json of 33 MB.
inline constexpr uint64_t kGgufMaxStringBytes = uint64_t{40} << 20;

// Bytes of one value of a fixed-size type; of the length field for strings and arrays; 0: unknown.
constexpr uint64_t gguf_value_bytes(uint32_t type) {
  switch (type) {
    case kGgufU8:
    case kGgufI8:
    case kGgufBool:
      return 1;
    case kGgufU16:
    case kGgufI16:
      return 2;
    case kGgufU32:
    case kGgufI32:
    case kGgufF32:
      return 4;
    case kGgufString:
    case kGgufU64:
    case kGgufI64:
    case kGgufF64:
      return 8;
    case kGgufArray:
      return 12;
    default:
      return 0;
  }
}

// The file's number of a type, and back. nullopt: a type that this build does not read.
uint32_t gguf_tensor_type(DType dtype) noexcept;
std::optional<DType> dtype_of_gguf(uint32_t type) noexcept;
// The name of any tensor type that GGUF defines or has defined ("Q4_K"), or null.
const char* gguf_tensor_type_name(uint32_t type) noexcept;
// "F32, F16, …": what this build reads, for messages.
std::string readable_tensor_types();

}  // namespace cutaway::formats
