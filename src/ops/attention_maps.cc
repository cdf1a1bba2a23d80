#include "ops/attention_maps.h"

#include <algorithm>
#include <limits>

#include "kernels/math.h"
#include "trace/trace.h"

namespace cutaway::ops {
namespace {

using kernels::kTilePositions;
using trace::Site;

constexpr float kUnseen = -std::numeric_limits<float>::infinity();

MapPlane plan_plane(Pass& pass, Site site, int layer, const AttentionShape& shape,
                    const Slice& slice) {
  MapPlane out;
  trace::Probe* only = nullptr;
  int64_t wanting = 0;
  for (trace::Probe* probe : pass.probes) {
    if (!probe->wants(site, layer)) continue;
    only = probe;
    ++wanting;
  }
  if (wanting == 0) return out;
  if (wanting == 1 && pass.batch.slices.size() == 1) out.memory = only->map_memory(site, layer);
  const int64_t n_keys = slice.first_position + slice.n;
  if (out.memory.data == nullptr) {
    const trace::TapPart part = pass.part(site, layer);
    trace::MapMemory& m = out.memory;
    m.heads = part.heads;
    m.begin = std::clamp(part.begin, slice.first_position, n_keys);
    m.end = std::clamp(part.end, m.begin, n_keys);
    m.cols = n_keys;
    m.head_stride = (m.end - m.begin) * n_keys;
    const int64_t heads = m.heads.empty() ? shape.n_heads : static_cast<int64_t>(m.heads.size());
    if (m.head_stride == 0) return {};
    m.data = pass.scratch.floats(heads * m.head_stride);
    out.own = true;
  }
  out.slot.assign(static_cast<size_t>(shape.n_heads), -1);
  for (int32_t i = 0; i < shape.n_heads; ++i) {
    if (out.memory.heads.empty()) {
      out.slot[static_cast<size_t>(i)] = i;
    } else if (i < static_cast<int32_t>(out.memory.heads.size())) {
      out.slot[static_cast<size_t>(out.memory.heads[static_cast<size_t>(i)])] = i;
    }
  }
  return out;
}

void show_plane(Pass& pass, Site site, int layer, const AttentionShape& shape, const Slice& slice,
                const MapPlane& plane) {
  if (!plane.own) return;
  const trace::MapMemory& m = plane.memory;
  const int64_t heads = m.heads.empty() ? shape.n_heads : static_cast<int64_t>(m.heads.size());
  trace::TapEvent event;
  event.run = slice.run;
  event.seq = slice.seq;
  event.site = site;
  event.layer = layer;
  event.first_position = static_cast<int32_t>(m.begin);
  event.values = {m.data, Shape{heads, m.end - m.begin, m.cols}, 0};
  event.heads = m.heads;
  for (trace::Probe* probe : pass.probes) {
    if (probe->wants(site, layer)) probe->observe(event);
  }
}

}  // namespace

std::vector<SliceMaps> plan_maps(Pass& pass, int layer, const AttentionShape& shape, int64_t top) {
  CUTAWAY_SPAN(span, "ops::plan_maps", "layer", layer, "top", top);
  std::vector<SliceMaps> out;
  for (const Slice& slice : pass.batch.slices) {
    SliceMaps maps;
    maps.scores = plan_plane(pass, Site::kAttnScores, layer, shape, slice);
    maps.pattern = plan_plane(pass, Site::kPattern, layer, shape, slice);
    if (top > 0) {
      const int64_t rows = slice.n * shape.n_heads;
      maps.top = top;
      maps.top_keys = pass.scratch.take<int32_t>(rows * top);
      maps.top_probabilities = pass.scratch.floats(rows * top);
      maps.rest = pass.scratch.floats(rows);
      maps.entropy = pass.scratch.floats(rows);
    }
    out.push_back(std::move(maps));
  }
  CUTAWAY_OUT(span, "slices", out.size());
  return out;
}

void show_maps(Pass& pass, int layer, const AttentionShape& shape,
               const std::vector<SliceMaps>& maps) {
  CUTAWAY_SPAN(span, "ops::show_maps", "layer", layer, "slices", maps.size());
  for (size_t i = 0; i < maps.size(); ++i) {
    const Slice& slice = pass.batch.slices[i];
    show_plane(pass, Site::kAttnScores, layer, shape, slice, maps[i].scores);
    show_plane(pass, Site::kPattern, layer, shape, slice, maps[i].pattern);
    if (maps[i].top == 0) continue;
    trace::AttentionTopEvent event;
    event.run = slice.run;
    event.seq = slice.seq;
    event.layer = layer;
    event.first_position = static_cast<int32_t>(slice.first_position);
    event.n = slice.n;
    event.n_heads = shape.n_heads;
    event.k = maps[i].top;
    event.keys = maps[i].top_keys;
    event.probabilities = maps[i].top_probabilities;
    event.rest = maps[i].rest;
    event.entropy = maps[i].entropy;
    for (trace::Probe* probe : pass.probes) {
      if (probe->top_keys(layer) > 0) probe->observe_top(event);
    }
  }
  CUTAWAY_OUT(span, "heads", shape.n_heads);
}

void KeptTiles::finish_pattern(const float* weights, const float* factor, int64_t position,
                               float* row) const noexcept {
  const trace::MapMemory& m = maps_.pattern.memory;
  if (!m.zeroed) std::fill_n(row, std::min(first_page_ * kTilePositions, m.cols), 0.0f);
  const int64_t last = position / kTilePositions;
  for (int64_t page = first_page_; page <= last; ++page) {
    const float by = factor[page - first_page_];
    const float* from = weights + (page - first_page_) * kTilePositions;
    float* to = row + page * kTilePositions;
    const int64_t n = std::min(kTilePositions, m.cols - page * kTilePositions);
    if (n == kTilePositions) {
      for (int64_t p = 0; p < kTilePositions; ++p) to[p] = from[p] * by;
    } else {
      for (int64_t p = 0; p < n; ++p) to[p] = from[p] * by;
    }
  }
  const int64_t done = std::min((last + 1) * kTilePositions, m.cols);
  // Tiles after the row's own that rows of the same task see were written as zeros.
  if (!m.zeroed) std::fill_n(row + done, m.cols - done, 0.0f);
}

void KeptTiles::finish(const kernels::KernelTable& table, int64_t i, int64_t head, int64_t n_heads,
                       int64_t position, int64_t slice_row, float max, float sum) const noexcept {
  if (float* row = maps_.scores.row(head, position)) {
    const int64_t cols = maps_.scores.memory.cols;
    const int64_t begin = std::min(first_page_ * kTilePositions, cols);
    const int64_t end = std::min((first_page_ + pages_) * kTilePositions, cols);
    std::fill_n(row, begin, kUnseen);
    std::fill_n(row + end, cols - end, kUnseen);
  }
  float* pattern = maps_.pattern.row(head, position);
  if (pattern == nullptr && maps_.top == 0) return;
  float* const factor = statistic(0, i, first_page_);  // takes the place of the maxima
  const float* const sums = statistic(1, i, first_page_);
  const float* const moments = statistic(2, i, first_page_);
  float moment = 0;
  for (int64_t t = 0; t < pages_; ++t) {
    if (sums[t] == 0) {
      factor[t] = 0;  // it shows this row nothing
      continue;
    }
    const float shift = factor[t] - max;
    const float scale = kernels::exp_f32(shift);
    moment += scale * (moments[t] + shift * sums[t]);
    factor[t] = scale / sum;
  }
  const float* weights = maps_.top > 0 ? kept_weights(i) : nullptr;
  if (pattern != nullptr) {
    finish_pattern(weights != nullptr ? weights : pattern + first_page_ * kTilePositions, factor,
                   position, pattern);
  }
  if (maps_.top == 0) return;
  const int64_t at = slice_row * n_heads + head;
  const int64_t seen_pages = position / kTilePositions + 1 - first_page_;
  kernels::TopKeys top;
  table.attention_top(weights, factor, seen_pages, maps_.top, top);
  float rest = 1;
  for (int64_t j = 0; j < maps_.top; ++j) {
    if (top.index[j] >= 0) top.index[j] += static_cast<int32_t>(first_page_ * kTilePositions);
    rest -= top.value[j];
  }
  std::copy_n(top.index, maps_.top, maps_.top_keys + at * maps_.top);
  std::copy_n(top.value, maps_.top, maps_.top_probabilities + at * maps_.top);
  maps_.rest[at] = std::max(rest, 0.0f);
  const double entropy = kernels::log_f64(static_cast<double>(sum)) -
                         static_cast<double>(moment) / static_cast<double>(sum);
  maps_.entropy[at] = static_cast<float>(std::max(entropy, 0.0));
}

}  // namespace cutaway::ops
