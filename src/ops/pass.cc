#include "ops/pass.h"

#include <algorithm>
#include <new>

namespace cutaway::ops {
namespace {
constexpr size_t kAlignment = 64;
constexpr size_t kBlockBytes = size_t{1} << 20;
}  // namespace

float* Scratch::floats(int64_t n) {
  const size_t bytes =
      (static_cast<size_t>(n) * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
  while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].size) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    const size_t size = std::max(bytes, kBlockBytes);
    uint8_t* data = memory_.take(size);
    if (data == nullptr) throw std::bad_alloc();
    blocks_.push_back({data, size});
    used_ = 0;
  }
  auto* result = reinterpret_cast<float*>(blocks_[block_].data + used_);
  used_ += bytes;
  return result;
}

void Pass::show(trace::Site site, int layer, const Rows& x, std::initializer_list<int64_t> inner) {
  for (const Slice& slice : batch.slices) {
    trace::TapEvent event;
    event.run = slice.run;
    event.seq = slice.seq;
    event.site = site;
    event.layer = layer;
    event.first_position = static_cast<int32_t>(slice.first_position);
    std::vector<int64_t> dims{slice.n};
    if (inner.size() == 0) dims.push_back(x.d);
    dims.insert(dims.end(), inner.begin(), inner.end());
    event.values = {x.row(slice.first_row), Shape(dims), 0};
    for (trace::Probe* probe : probes) {
      if (probe->wants(site, layer)) probe->observe(event);
    }
  }
}

}  // namespace cutaway::ops
