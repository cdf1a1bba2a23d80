#include "tensor/tensor.h"

#include "base/check.h"

namespace cutaway {

Shape::Shape(std::initializer_list<int64_t> dims)
    : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  CUTAWAY_CHECK(dims.size() <= kMaxRank);
  for (size_t i = 0; i < dims.size(); ++i) dims_[i] = dims[i];
}

int64_t Shape::elements() const {
  int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= dims_[static_cast<size_t>(i)];
  return n;
}

std::string Shape::text() const {
  std::string out = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) out += ',';
    out += std::to_string(dims_[static_cast<size_t>(i)]);
  }
  return out + "]";
}

}  // namespace cutaway
