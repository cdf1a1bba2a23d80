// How weights lie in memory after loading: 16 output rows interleaved, so that a SIMD lane owns an
// output row and accumulates over K in one fixed order, whatever the number of columns.
//
// A matrix of `rows` × `cols` (out × in features) is ⌈rows / 16⌉ groups; the last one is padded
// with zero rows. A group is a sequence of blocks along K. All file types map onto these layouts:
//
//   layout      per block of 16 rows × 32 K                                          from
//   kNibbleMin  f16 d[16]; f16 m[16]; u8 q[4][64]      w = d · q + m                 Q4_1
//   kNibble     f16 d[16]; u8 q[4][64]                 w = d · (q − 8)               Q4_0
//   kByte       f16 d[16]; i8 q[8][64]                 w = d · q                     Q8_0
//   kFiveMin    f16 d[16]; f16 m[16]; u8 h[64]; u8 q[4][64]
//                                                      w = d · q + m                 Q5_1
//   kFive       f16 d[16]; u8 h[64]; u8 q[4][64]       w = d · (q − 16)              Q5_0
//   kNonlinear  f16 d[16]; u8 q[4][64]                 w = d · kIQ4Values[q]         IQ4_NL
//   kMicro      e8m0 e[16]; u8 q[4][64]                w = 2^(e−128) · kMXFP4Values[q]
//                                                                                    MXFP4
//     q[j][4·r + i]: row r, K element 4·j + i; nibbles: low half K = 4·j + i, high half 16 + 4·j +
//     i; bit j of h[4·r + i] is bit 4 of the q of K = 4·j + i
//   layout      per block of 16 rows × 256 K (super_blocks.h: the order within)      from
//   kSuper2     f16 d, dmin[16]; u8 s[16][16]; q of 2 bits                           Q2_K
//   kSuper3     f32 d[16]; i8 s[16][16]; q of 2 + 1 bits                             Q3_K
//   kSuper4     f16 d, dmin[16]; u8 s[8][16], m[8][16]; q of 4 bits                  Q4_K
//   kSuper5     f16 d, dmin[16]; u8 s[8][16], m[8][16]; q of 4 + 1 bits              Q5_K
//   kSuper6     f32 d[16]; i8 s[16][16]; q of 4 + 2 bits                             Q6_K
//   kSuperCode  f32 d[16]; i8 s[8][16]; numbers of kIQ4Values, of 4 bits             IQ4_XS
//     w = d · s · q − dmin · m, each scale s for 16 or 32 K
//   layout      per K element                                                        from
//   kHalf       f16 w[16]                                                            F16
//   kBrain      bf16 w[16]                                                           BF16
//   kFloat      f32 w[16]                                                            F32
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "tensor/tensor.h"

namespace cutaway::kernels {

inline constexpr int64_t kGroupRows = 16;
inline constexpr int64_t kBlockK = 32;
inline constexpr int64_t kSuperK = 256;

enum class Layout : uint8_t {
  kNibbleMin,
  kNibble,
  kByte,
  kHalf,
  kBrain,
  kFloat,
  kFiveMin,
  kFive,
  kNonlinear,
  kMicro,
  kSuper2,
  kSuper3,
  kSuper4,
  kSuper5,
  kSuper6,
  kSuperCode,
};
inline constexpr int kLayoutCount = 16;

const char* layout_name(Layout layout) noexcept;
// The layout that a stored type is packed into; nullopt: the type is no weight, or has no products
// yet.
std::optional<Layout> layout_of(DType type) noexcept;
// The same for a type that has one.
Layout layout_for(DType type) noexcept;
// True for the layouts whose K must be a multiple of kBlockK.
constexpr bool is_blocked(Layout layout) noexcept {
  return layout != Layout::kHalf && layout != Layout::kBrain && layout != Layout::kFloat;
}
// The same of kSuperK.
constexpr bool is_super(Layout layout) noexcept {
  return layout >= Layout::kSuper2 && layout <= Layout::kSuperCode;
}

// Bytes of one group of 16 rows × cols. Precondition: cols fits the layout.
size_t group_bytes(Layout layout, int64_t cols) noexcept;

// A packed weight. Does not own `data`, which is 64-byte aligned.
struct PackedMatrix {
  Layout layout = Layout::kFloat;
  int64_t rows = 0, cols = 0;
  const uint8_t* data = nullptr;
  size_t stride = 0;  // bytes from group to group, of a part of a wider matrix; 0: it is whole

  int64_t groups() const { return (rows + kGroupRows - 1) / kGroupRows; }
  size_t bytes() const { return static_cast<size_t>(groups()) * group_bytes(layout, cols); }
  const uint8_t* group(int64_t g) const {
    return data + static_cast<size_t>(g) * (stride != 0 ? stride : group_bytes(layout, cols));
  }
};

// Columns [first, first + n) of a whole matrix, where they lie; nullopt: they begin or end within a
// block of its layout. matmul_f32 takes such a part, other kernels do not.
std::optional<PackedMatrix> columns_of(const PackedMatrix& matrix, int64_t first,
                                       int64_t n) noexcept;

// Packs groups [group_begin, group_end) of a stored rank-2 tensor {rows, cols} into `out`, where
// group 0 begins. `row_order`, when not empty, names the stored row that goes to each packed row.
// `stored` holds the rows from `first_row` on that those groups need. Returns −1, or the first
// packed row that holds a value that is not finite (a scale, for blocks).
int64_t pack_groups(std::span<const uint8_t> stored, DType type, int64_t rows, int64_t cols,
                    std::span<const int32_t> row_order, int64_t group_begin, int64_t group_end,
                    uint8_t* out, int64_t first_row = 0) noexcept;

// The dequantised values of one row: out[0 … cols).
void unpack_row(const PackedMatrix& matrix, int64_t row, float* out) noexcept;

// The dequantised values of `elements` stored elements (a multiple of the type's block): each
// rounded as the ggml format's own reference does. Any type but I32.
void dequantize(DType type, const uint8_t* stored, int64_t elements, float* out) noexcept;

}  // namespace cutaway::kernels
