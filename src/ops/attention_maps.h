// What attention keeps beside its result, for probes: rows of scores and patterns, and the standing
// form. Internal to ops/.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/attention.h"

namespace cutaway::ops {

// One map of one slice.
struct MapPlane {
  trace::MapMemory memory;    // data == nullptr: not wanted
  bool own = false;           // the pass's memory: shown when it is whole
  std::vector<int32_t> slot;  // [n_heads]: which of the kept heads, −1: none

  // Where the row of a head and an absolute position goes; null: nowhere.
  float* row(int64_t head, int64_t position) const noexcept {
    if (memory.data == nullptr || position < memory.begin || position >= memory.end) return nullptr;
    const int32_t at = slot[static_cast<size_t>(head)];
    if (at < 0) return nullptr;
    return memory.data + at * memory.head_stride + (position - memory.begin) * memory.cols;
  }
};

// What is kept of one slice.
struct SliceMaps {
  MapPlane scores, pattern;
  int64_t top = 0;                     // keys of a row in the standing form; 0: not wanted
  int32_t* top_keys = nullptr;         // [n][n_heads][top]
  float* top_probabilities = nullptr;  // likewise
  float* rest = nullptr;               // [n][n_heads]
  float* entropy = nullptr;

  bool any() const {
    return scores.memory.data != nullptr || pattern.memory.data != nullptr || top > 0;
  }
};

// Keys of a row in the standing form that some probe wants.
inline int64_t top_wanted(const Pass& pass, int layer) {
  int64_t top = 0;
  for (const trace::Probe* probe : pass.probes) top = std::max(top, probe->top_keys(layer));
  return top;
}
// One for each slice. Memory is the probe's own or the scratch's.
std::vector<SliceMaps> plan_maps(Pass& pass, int layer, const AttentionShape& shape, int64_t top);
// The same, none when no probe wants any.
inline std::vector<SliceMaps> maps_wanted(Pass& pass, int layer, const AttentionShape& shape) {
  const int64_t top = top_wanted(pass, layer);
  if (top == 0 && !pass.wants(trace::Site::kAttnScores, layer) &&
      !pass.wants(trace::Site::kPattern, layer)) {
    return {};
  }
  return plan_maps(pass, layer, shape, top);
}
// When every row is finished.
void show_maps(Pass& pass, int layer, const AttentionShape& shape,
               const std::vector<SliceMaps>& maps);

// What one task keeps of its tiles, of n rows over `pages` tiles, until its rows are finished.
class KeptTiles {
 public:
  static int64_t floats(const SliceMaps& maps, int64_t n, int64_t pages) {
    return n * pages * (3 + (maps.top > 0 ? kernels::kTilePositions : 0));
  }
  // `memory`: floats() of them.
  KeptTiles(const SliceMaps& maps, float* memory, int64_t n, int64_t first_page, int64_t pages)
      : maps_(maps), memory_(memory), n_(n), first_page_(first_page), pages_(pages) {}

  // How many numbers of a page's 64 are kept.
  int64_t weights_n(int64_t page) const noexcept {
    return maps_.top > 0 ? kernels::kTilePositions : within(maps_.pattern.memory.cols, page);
  }
  int64_t scores_n(int64_t page) const noexcept { return within(maps_.scores.memory.cols, page); }
  // Where those of row i go; null: nowhere.
  float* weights(int64_t i, int64_t page, int64_t head, int64_t position) const noexcept {
    if (maps_.top > 0) return kept_weights(i) + (page - first_page_) * kernels::kTilePositions;
    float* row = weights_n(page) > 0 ? maps_.pattern.row(head, position) : nullptr;
    return row == nullptr ? nullptr : row + page * kernels::kTilePositions;
  }
  float* scores(int64_t page, int64_t head, int64_t position) const noexcept {
    float* row = scores_n(page) > 0 ? maps_.scores.row(head, position) : nullptr;
    return row == nullptr ? nullptr : row + page * kernels::kTilePositions;
  }
  // A page's max, sum and moment of row i: [3][n][pages].
  float* statistic(int which, int64_t i, int64_t page) const noexcept {
    return memory_ + (which * n_ + i) * pages_ + page - first_page_;
  }

  // Row i, the slice's `slice_row`, whose softmax has this max and sum.
  void finish(const kernels::KernelTable& table, int64_t i, int64_t head, int64_t n_heads,
              int64_t position, int64_t slice_row, float max, float sum) const noexcept;

 private:
  static int64_t within(int64_t cols, int64_t page) noexcept {
    return std::clamp<int64_t>(cols - page * kernels::kTilePositions, 0, kernels::kTilePositions);
  }
  float* kept_weights(int64_t i) const noexcept {
    return memory_ + 3 * n_ * pages_ + i * pages_ * kernels::kTilePositions;
  }
  void finish_pattern(const float* weights, const float* factor, int64_t position,
                      float* row) const noexcept;

  const SliceMaps& maps_;
  float* memory_;
  int64_t n_, first_page_, pages_;
};

}  // namespace cutaway::ops
