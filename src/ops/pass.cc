#include "ops/pass.h"

#include <algorithm>
#include <new>

#include "trace/trace.h"

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

trace::TapPart Pass::part(trace::Site site, int layer) const {
  trace::TapPart out{INT64_MAX, 0, {}};
  bool first = true;
  for (const trace::Probe* probe : probes) {
    if (!probe->wants(site, layer)) continue;
    const trace::TapPart wanted = probe->part(site, layer);
    out.begin = std::min(out.begin, wanted.begin);
    out.end = std::max(out.end, wanted.end);
    out.heads = first ? wanted.heads : std::span<const int32_t>();
    first = false;
  }
  return out;
}

Rows Pass::make_tapped(trace::Site site, int layer, int64_t begin, int64_t n, int64_t d) {
  CUTAWAY_SPAN(span, "ops::Pass::make_tapped", "tap", trace::tap_name(site, layer), "rows", n, "d",
               d);
  if (batch.slices.size() == 1 && !changes(site, layer)) {
    for (trace::Probe* probe : probes) {
      if (!probe->wants(site, layer)) continue;
      float* memory = probe->row_memory(site, layer, batch.slices[0].first_position + begin, n, d);
      if (memory == nullptr) continue;
      CUTAWAY_OUT(span, "probe", true);
      return {memory, n, d};
    }
  }
  CUTAWAY_OUT(span, "probe", false);
  return make(n, d);
}

namespace {

trace::TapEvent event_of(trace::Site site, int layer, const Slice& slice, int64_t first_position,
                         float* values, const Shape& shape) {
  trace::TapEvent event;
  event.run = slice.run;
  event.seq = slice.seq;
  event.site = site;
  event.layer = layer;
  event.first_position = static_cast<int32_t>(first_position);
  event.values = {values, shape, 0};
  return event;
}

}  // namespace

void Pass::tap_values(trace::Site site, int layer, const Slice& slice, int64_t first_position,
                      float* values, const Shape& shape) {
  CUTAWAY_SPAN(span, "ops::Pass::tap_values", "tap", trace::tap_name(site, layer), "position",
               first_position);
  edit_values(site, layer, slice, first_position, values, shape);
  show_values(site, layer, slice, first_position, values, shape);
  CUTAWAY_OUT(span, "values", TensorView{values, shape, 0});
}

void Pass::edit_values(trace::Site site, int layer, const Slice& slice, int64_t first_position,
                       float* values, const Shape& shape) {
  CUTAWAY_SPAN(span, "ops::Pass::edit_values", "tap", trace::tap_name(site, layer), "position",
               first_position);
  if (editors.empty() || !trace::can_change(site)) return;
  const trace::TapEvent event = event_of(site, layer, slice, first_position, values, shape);
  for (trace::Editor* editor : editors) {
    if (editor->changes(site, layer)) editor->edit(event, values);
  }
  CUTAWAY_OUT(span, "values", event.values);
}

void Pass::show_values(trace::Site site, int layer, const Slice& slice, int64_t first_position,
                       float* values, const Shape& shape) {
  CUTAWAY_SPAN(span, "ops::Pass::show_values", "tap", trace::tap_name(site, layer), "position",
               first_position);
  if (probes.empty()) return;
  const trace::TapEvent event = event_of(site, layer, slice, first_position, values, shape);
  for (trace::Probe* probe : probes) {
    if (probe->wants(site, layer)) probe->observe(event);
  }
  CUTAWAY_OUT(span, "values", event.values);
}

void Pass::tap_slices(trace::Site site, int layer, const Rows& x,
                      std::initializer_list<int64_t> inner) {
  for (const Slice& slice : batch.slices) {
    int64_t begin = 0, n = slice.n;
    if (editors.empty()) {
      const trace::TapPart wanted = part(site, layer);
      begin = std::clamp<int64_t>(wanted.begin - slice.first_position, 0, slice.n);
      n = std::clamp<int64_t>(wanted.end - slice.first_position, begin, slice.n) - begin;
      if (n == 0) continue;
    }
    std::vector<int64_t> dims{n};
    if (inner.size() == 0) dims.push_back(x.d);
    dims.insert(dims.end(), inner.begin(), inner.end());
    tap_values(site, layer, slice, slice.first_position + begin, x.row(slice.first_row + begin),
               Shape(dims));
  }
}

}  // namespace cutaway::ops
