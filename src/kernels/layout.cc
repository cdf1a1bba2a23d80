#include "kernels/layout.h"

#include <cstring>

#include "base/check.h"
#include "kernels/blocks.h"
#include "kernels/super_blocks.h"

namespace cutaway::kernels {
namespace {

template <typename T>
T load(const uint8_t* bytes, int64_t index) noexcept {
  T value;  // stored tensors need not be aligned
  std::memcpy(&value, bytes + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename Block>
void unpack_blocks(const uint8_t* group, int64_t r, int64_t cols, float* out) noexcept {
  const auto* blocks = reinterpret_cast<const Block*>(group);
  for (int64_t k = 0; k < cols; ++k) out[k] = weight_at(blocks[k / kBlockK], r, k % kBlockK);
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
    case Layout::kFiveMin:
      return "five_min";
    case Layout::kFive:
      return "five";
    case Layout::kNonlinear:
      return "nonlinear";
    case Layout::kMicro:
      return "microscaled";
    case Layout::kSuper2:
      return "super2";
    case Layout::kSuper3:
      return "super3";
    case Layout::kSuper4:
      return "super4";
    case Layout::kSuper5:
      return "super5";
    case Layout::kSuper6:
      return "super6";
    case Layout::kSuperCode:
      return "super_code";
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
      return Layout::kFive;
    case DType::kQ5_1:
      return Layout::kFiveMin;
    case DType::kIQ4_NL:
      return Layout::kNonlinear;
    case DType::kMXFP4:
      return Layout::kMicro;
    case DType::kQ2_K:
      return Layout::kSuper2;
    case DType::kQ3_K:
      return Layout::kSuper3;
    case DType::kQ4_K:
      return Layout::kSuper4;
    case DType::kQ5_K:
      return Layout::kSuper5;
    case DType::kQ6_K:
      return Layout::kSuper6;
    case DType::kIQ4_XS:
      return Layout::kSuperCode;
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

size_t group_bytes(Layout layout, int64_t cols) noexcept {
  CUTAWAY_CHECK(cols >= 0 && (!is_blocked(layout) || cols % kBlockK == 0));
  CUTAWAY_CHECK(!is_super(layout) || cols % kSuperK == 0);
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
    case Layout::kFiveMin:
      return blocks * sizeof(FiveMinBlock);
    case Layout::kFive:
      return blocks * sizeof(FiveBlock);
    case Layout::kNonlinear:
      return blocks * sizeof(NonlinearBlock);
    case Layout::kMicro:
      return blocks * sizeof(MicroBlock);
    case Layout::kSuper2:
      return blocks / kParts * sizeof(Super2);
    case Layout::kSuper3:
      return blocks / kParts * sizeof(Super3);
    case Layout::kSuper4:
      return blocks / kParts * sizeof(Super4);
    case Layout::kSuper5:
      return blocks / kParts * sizeof(Super5);
    case Layout::kSuper6:
      return blocks / kParts * sizeof(Super6);
    case Layout::kSuperCode:
      return blocks / kParts * sizeof(SuperCode);
  }
  return 0;
}

std::optional<PackedMatrix> columns_of(const PackedMatrix& matrix, int64_t first,
                                       int64_t n) noexcept {
  CUTAWAY_CHECK(first >= 0 && n >= 0 && first + n <= matrix.cols && matrix.stride == 0);
  const int64_t unit = is_super(matrix.layout) ? kSuperK : is_blocked(matrix.layout) ? kBlockK : 1;
  if (first % unit != 0 || n % unit != 0) return std::nullopt;
  return PackedMatrix{matrix.layout, matrix.rows, n,
                      matrix.data + group_bytes(matrix.layout, first),
                      group_bytes(matrix.layout, matrix.cols)};
}

void unpack_row(const PackedMatrix& matrix, int64_t row, float* out) noexcept {
  CUTAWAY_CHECK(row >= 0 && row < matrix.rows);
  const uint8_t* group = matrix.group(row / kGroupRows);
  const int64_t r = row % kGroupRows;
  switch (matrix.layout) {
    case Layout::kNibbleMin:
      return unpack_blocks<NibbleMinBlock>(group, r, matrix.cols, out);
    case Layout::kNibble:
      return unpack_blocks<NibbleBlock>(group, r, matrix.cols, out);
    case Layout::kByte:
      return unpack_blocks<ByteBlock>(group, r, matrix.cols, out);
    case Layout::kFiveMin:
      return unpack_blocks<FiveMinBlock>(group, r, matrix.cols, out);
    case Layout::kFive:
      return unpack_blocks<FiveBlock>(group, r, matrix.cols, out);
    case Layout::kNonlinear:
      return unpack_blocks<NonlinearBlock>(group, r, matrix.cols, out);
    case Layout::kMicro:
      return unpack_blocks<MicroBlock>(group, r, matrix.cols, out);
    case Layout::kSuper2:
    case Layout::kSuper3:
    case Layout::kSuper4:
    case Layout::kSuper5:
    case Layout::kSuper6:
    case Layout::kSuperCode:
      return unpack_super_row(matrix.layout, group, r, matrix.cols, out);
    case Layout::kHalf:
      for (int64_t k = 0; k < matrix.cols; ++k) {
        out[k] = f16_to_f32(load<uint16_t>(group, k * kGroupRows + r));
      }
      return;
    case Layout::kBrain:
      for (int64_t k = 0; k < matrix.cols; ++k) {
        out[k] = bf16_to_f32(load<uint16_t>(group, k * kGroupRows + r));
      }
      return;
    case Layout::kFloat:
      for (int64_t k = 0; k < matrix.cols; ++k) out[k] = load<float>(group, k * kGroupRows + r);
      return;
  }
}

}  // namespace cutaway::kernels
