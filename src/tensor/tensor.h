// Shapes and views: what a tensor is, without owning it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "tensor/dtype.h"

namespace cutaway {

// Up to four dimensions, outermost first (row-major): a weight that maps `in` to `out` features is
// {out, in}.
class Shape {
 public:
  static constexpr int kMaxRank = 4;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);
  explicit Shape(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return dims_[static_cast<size_t>(axis)]; }
  int64_t elements() const;
  std::string text() const;  // "[576,1536]"
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

// Read-only f32 values that someone else owns; valid as long as their owner says. The rows of the
// outermost axis may be `row_stride` elements apart; all inner axes are contiguous.
struct TensorView {
  const float* data = nullptr;
  Shape shape;
  int64_t row_stride = 0;  // 0: contiguous

  int64_t rows() const { return shape.rank() == 0 ? 1 : shape[0]; }
  int64_t row_elements() const { return rows() == 0 ? 0 : shape.elements() / rows(); }
  const float* row(int64_t i) const {
    return data + i * (row_stride == 0 ? row_elements() : row_stride);
  }
};

}  // namespace cutaway
