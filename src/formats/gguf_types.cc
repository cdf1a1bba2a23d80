#include "formats/gguf_types.h"

#include <iterator>

namespace cutaway::formats {
namespace {

struct TypeRow {
  uint32_t gguf;
  DType dtype;
};

constexpr TypeRow kReadable[] = {
    {0, DType::kF32},   {1, DType::kF16},     {30, DType::kBF16},   {8, DType::kQ8_0},
    {2, DType::kQ4_0},  {3, DType::kQ4_1},    {6, DType::kQ5_0},    {7, DType::kQ5_1},
    {10, DType::kQ2_K}, {11, DType::kQ3_K},   {12, DType::kQ4_K},   {13, DType::kQ5_K},
    {14, DType::kQ6_K}, {20, DType::kIQ4_NL}, {23, DType::kIQ4_XS}, {39, DType::kMXFP4},
    {26, DType::kI32},
};

// By number. Null: never assigned; "(removed)": assigned once and withdrawn from the format.
constexpr const char* kNames[] = {
    "F32",
    "F16",
    "Q4_0",
    "Q4_1",
    "Q4_2 (removed)",
    "Q4_3 (removed)",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q8_1",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "Q8_K",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ3_XXS",
    "IQ1_S",
    "IQ4_NL",
    "IQ3_S",
    "IQ2_S",
    "IQ4_XS",
    "I8",
    "I16",
    "I32",
    "I64",
    "F64",
    "IQ1_M",
    "BF16",
    "Q4_0_4_4 (removed)",
    "Q4_0_4_8 (removed)",
    "Q4_0_8_8 (removed)",
    "TQ1_0",
    "TQ2_0",
    "IQ4_NL_4_4 (removed)",
    "IQ4_NL_4_8 (removed)",
    "IQ4_NL_8_8 (removed)",
    "MXFP4",
};
static_assert(std::size(kNames) == 40);

}  // namespace

uint32_t gguf_tensor_type(DType dtype) noexcept {
  for (const TypeRow& row : kReadable) {
    if (row.dtype == dtype) return row.gguf;
  }
  return 0;
}

std::optional<DType> dtype_of_gguf(uint32_t type) noexcept {
  for (const TypeRow& row : kReadable) {
    if (row.gguf == type) return row.dtype;
  }
  return std::nullopt;
}

const char* gguf_tensor_type_name(uint32_t type) noexcept {
  return type < std::size(kNames) ? kNames[type] : nullptr;
}

std::string readable_tensor_types() {
  std::string out;
  for (const TypeRow& row : kReadable) {
    if (!out.empty()) out += ", ";
    out += dtype_name(row.dtype);
  }
  return out;
}

}  // namespace cutaway::formats
