// The standing form of attention of one sequence, kept while it is computed: of every layer, head
// and query the likeliest keys with their exact probabilities, the mass of all others, the entropy.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/large_memory.h"
#include "formats/safetensors_writer.h"
#include "trace/probe.h"
#include "trace/tap_selection.h"

namespace cutaway::inspect {

class AttentionTop final : public trace::Probe {
 public:
  // `layers`, ascending; empty: all. 1 ≤ k ≤ kernels::kMaxTopKeys.
  AttentionTop(int64_t k, int64_t n_layers, std::span<const int32_t> layers);

  bool wants(trace::Site, int) const override { return false; }
  void observe(const trace::TapEvent&) override {}
  int64_t top_keys(int layer) const override { return of_[static_cast<size_t>(layer)] ? k_ : 0; }
  void observe_top(const trace::AttentionTopEvent& event) override;

  // For the next sequence: forgets what it has seen, and keeps the memory.
  void clear();

  // The positions that it has seen.
  trace::TapRange seen() const;

  // Error kUnsupported where it has not seen all of `range` in a layer.
  Status check(const trace::TapRange& range) const;

  // Its tensors for `heads` (empty: all) and the positions of `range`, four a layer:
  // blocks.{l}.attn.top_keys {1, heads, positions, k}, I32; top_probs likewise, F32; top_rest and
  // entropy {1, heads, positions}.
  std::vector<formats::SafetensorsWriter::Tensor> tensors(std::span<const int32_t> heads,
                                                          int64_t n_heads,
                                                          const trace::TapRange& range) const;
  // Tensor `i` of these to `to`, which has room for it: floats, or the bits of I32.
  void copy(size_t i, std::span<const int32_t> heads, const trace::TapRange& range,
            float* to) const;
  // Writes them, in that order, from tensor `first` of the file on.
  void write(formats::SafetensorsWriter& writer, size_t first, std::span<const int32_t> heads,
             const trace::TapRange& range) const;

 private:
  // Rows of consecutive positions, each of all heads, in memory that has room for `room` positions.
  struct Part {
    int64_t n = 0, room = 0;
    int32_t* keys = nullptr;         // [room][n_heads][k]
    float* probabilities = nullptr;  // likewise
    float* rest = nullptr;           // [room][n_heads]
    float* entropy = nullptr;
  };
  struct Layer {
    std::vector<Part> parts;
    size_t current = 0;  // of the parts
    int64_t n = 0;       // positions
  };
  Part make_part(int64_t positions);

  int64_t k_;
  int64_t n_heads_ = 0, first_position_ = -1;
  std::vector<bool> of_;       // [n_layers]
  std::vector<Layer> layers_;  // [n_layers]
  LargeArena memory_{size_t{1} << 21};
};

}  // namespace cutaway::inspect
