#include "kernels/layout.h"

#include <cstring>

#include "base/check.h"
#include "kernels/blocks.h"

namespace cutaway::kernels {
namespace {

template <typename T>
T load(const uint8_t* bytes, int64_t index) noexcept {
  T value;  // stored tensors need not be aligned
  std::memcpy(&value, bytes + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

const char* layout_name(Layout layout) noexcept {
  switch (layout) {
    case Layout::kNibbleMin:
      return "nibble_min";
    case Layout::kNibble:
      return "nibble";
    case Layout::kByte:
      return "byte";
    case Layout::kHalf:
      return "half";
    case Layout::kBrain:
      return "brain";
    case Layout::kFloat:
      return "float";
  }
  return "?";
}

std::optional<Layout> layout_of(DType type) noexcept {
  switch (type) {
    case DType::kF32:
      return Layout::kFloat;
    case DType::kF16:
      return Layout::kHalf;
    case DType::kBF16:
      return Layout::kBrain;
    case DType::kQ8_0:
      return Layout::kByte;
    case DType::kQ4_0:
      return Layout::kNibble;
    case DType::kQ4_1:
      return Layout::kNibbleMin;
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kMXFP4:
    case DType::kI32:  // integers are no weights
      break;
  }
  return std::nullopt;
}

Layout layout_for(DType type) noexcept {
  const std::optional<Layout> layout = layout_of(type);
  CUTAWAY_CHECK(layout.has_value());
  return *layout;
}

bool is_blocked(Layout layout) noexcept {
  return layout == Layout::kNibbleMin || layout == Layout::kNibble || layout == Layout::kByte;
}

size_t group_bytes(Layout layout, int64_t cols) noexcept {
  CUTAWAY_CHECK(cols >= 0 && (!is_blocked(layout) || cols % kBlockK == 0));
  const auto k = static_cast<size_t>(cols);
  const size_t blocks = k / static_cast<size_t>(kBlockK);
  switch (layout) {
    case Layout::kNibbleMin:
      return blocks * sizeof(NibbleMinBlock);
    case Layout::kNibble:
      return blocks * sizeof(NibbleBlock);
    case Layout::kByte:
      return blocks * sizeof(ByteBlock);
    case Layout::kHalf:
    case Layout::kBrain:
      return k * kGroupRows * sizeof(uint16_t);
    case Layout::kFloat:
      return k * kGroupRows * sizeof(float);
  }
  return 0;
}

void unpack_row(const PackedMatrix& matrix, int64_t row, float* out) noexcept {
  CUTAWAY_CHECK(row >= 0 && row < matrix.rows);
  const uint8_t* group = matrix.group(row / kGroupRows);
  const int64_t r = row % kGroupRows;
  for (int64_t k = 0; k < matrix.cols; ++k) {
    const int64_t b = k / kBlockK;
    const int64_t i = k % kBlockK;
    switch (matrix.layout) {
      case Layout::kNibbleMin: {
        const auto& block = reinterpret_cast<const NibbleMinBlock*>(group)[b];
        out[k] = f16_to_f32(block.d[r]) * static_cast<float>(nibble_at(block.q, r, i)) +
                 f16_to_f32(block.m[r]);
        break;
      }
      case Layout::kNibble: {
        const auto& block = reinterpret_cast<const NibbleBlock*>(group)[b];
        out[k] = f16_to_f32(block.d[r]) * static_cast<float>(nibble_at(block.q, r, i) - 8);
        break;
      }
      case Layout::kByte: {
        const auto& block = reinterpret_cast<const ByteBlock*>(group)[b];
        out[k] = f16_to_f32(block.d[r]) * static_cast<float>(byte_at(block, r, i));
        break;
      }
      case Layout::kHalf:
        out[k] = f16_to_f32(load<uint16_t>(group, k * kGroupRows + r));
        break;
      case Layout::kBrain:
        out[k] = bf16_to_f32(load<uint16_t>(group, k * kGroupRows + r));
        break;
      case Layout::kFloat:
        out[k] = load<float>(group, k * kGroupRows + r);
        break;
    }
  }
}

}  // namespace cutaway::kernels
