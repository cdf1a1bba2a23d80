// One forward pass over a batch: what is computed with (kernels, threads, scratch memory), for
// which tokens, and who watches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/large_memory.h"
#include "base/thread_pool.h"
#include "kernels/table.h"
#include "kv/sequence.h"
#include "tensor/tensor.h"
#include "trace/probe.h"

namespace cutaway::ops {

// A matrix of activations, row = token. Lives in the pass's scratch memory.
struct Rows {
  float* data = nullptr;
  int64_t n = 0, d = 0;
  float* row(int64_t i) const { return data + i * d; }
  TensorView view() const { return {data, Shape{n, d}, 0}; }
};

// The rows of one sequence in a batch: n consecutive tokens from first_position on.
struct Slice {
  kv::Sequence* kv = nullptr;  // room for first_position + n positions is reserved
  int64_t first_position = 0;
  int64_t first_row = 0;
  int64_t n = 0;
  int64_t run = -1;
  int32_t seq = 0;
  int64_t context = 0;  // tokens that the sequence may come to hold: some rotary scalings ask
};

struct Batch {
  std::vector<int32_t> tokens;      // [rows], each a valid id
  std::vector<Slice> slices;        // cover the rows in order
  std::vector<int64_t> logit_rows;  // rows whose logits are wanted, ascending
};

// Memory for activations: grows to the largest pass and is used again. Addresses are 64-byte
// aligned.
class Scratch {
 public:
  // Valid until the next rewind() to an earlier mark. Contents are not set.
  float* floats(int64_t n);
  template <typename T>
  T* take(int64_t n) {
    static_assert(alignof(T) <= 64);
    return reinterpret_cast<T*>(floats((n * static_cast<int64_t>(sizeof(T)) + 3) / 4));
  }
  struct Mark {
    size_t block = 0, used = 0;
  };
  Mark mark() const { return {block_, used_}; }
  void rewind(const Mark& mark) {
    block_ = mark.block;
    used_ = mark.used;
  }

 private:
  struct Block {
    uint8_t* data;
    size_t size;
  };
  LargeArena memory_{size_t{4} << 20};
  std::vector<Block> blocks_;
  size_t block_ = 0, used_ = 0;
};

// Sees what the products of a pass read.
class ProductWatcher {
 public:
  virtual ~ProductWatcher() = default;
  // Called on the engine's thread before x · weightᵀ is computed; `x` is valid during the call
  // only.
  virtual void product(const kernels::PackedMatrix& weight, const Rows& x) = 0;
};

struct Pass {
  const kernels::KernelTable& table;
  ThreadPool& pool;
  Scratch& scratch;
  const Batch& batch;
  bool precise = false;  // f32 activations × dequantised weights
  std::span<trace::Probe* const> probes = {};
  ProductWatcher* watcher = nullptr;  // of precise passes only: others read no floats
  std::span<trace::Editor* const> editors = {};

  // Rows for values that exist because a probe wants them: a probe's own memory, or the scratch's.
  // begin, n: which of the pass's rows; all others are not computed.
  Rows make_tapped(trace::Site site, int layer, int64_t begin, int64_t n, int64_t d);
  Rows make_tapped(trace::Site site, int layer, int64_t d) {
    return make_tapped(site, layer, 0, rows(), d);
  }

  int64_t rows() const { return static_cast<int64_t>(batch.tokens.size()); }
  Rows make(int64_t n, int64_t d) { return {scratch.floats(n * d), n, d}; }

  bool wants(trace::Site site, int layer) const {
    for (trace::Probe* probe : probes) {
      if (probe->wants(site, layer)) return true;
    }
    return false;
  }
  // What any of the probes that want it wants of it. The heads are all, or one probe's.
  trace::TapPart part(trace::Site site, int layer) const;
  // True when an editor may change the values there: what a fused form never stores must then exist
  // before it is read.
  bool changes(trace::Site site, int layer) const {
    for (trace::Editor* editor : editors) {
      if (editor->changes(site, layer)) return true;
    }
    return false;
  }
  bool watches(trace::Site site, int layer) const {
    return wants(site, layer) || changes(site, layer);
  }
  // Lets the editors change each slice's rows, then shows them to the probes that want them. Each
  // row has the shape `inner` (its product is x.d); empty: {x.d}.
  void tap(trace::Site site, int layer, const Rows& x, std::initializer_list<int64_t> inner = {}) {
    if (probes.empty() && editors.empty()) [[likely]]
      return;
    tap_slices(site, layer, x, inner);
  }
  // The same of values of one slice that lie by themselves, from `first_position` on.
  void tap_values(trace::Site site, int layer, const Slice& slice, int64_t first_position,
                  float* values, const Shape& shape);
  // The two halves of it, for what must happen between.
  void edit_values(trace::Site site, int layer, const Slice& slice, int64_t first_position,
                   float* values, const Shape& shape);
  void show_values(trace::Site site, int layer, const Slice& slice, int64_t first_position,
                   float* values, const Shape& shape);

 private:
  void tap_slices(trace::Site site, int layer, const Rows& x, std::initializer_list<int64_t> inner);
};

// Runs one(i) noexcept for every i in [0, n): on the threads when there is work for them.
template <typename F>
void for_rows(Pass& pass, int64_t n, F&& one) {
  constexpr int64_t kWorthSharing = 8, kRowsPerChunk = 4;
  if (n < kWorthSharing) {
    for (int64_t i = 0; i < n; ++i) one(i);
    return;
  }
  pass.pool.parallel_for(
      static_cast<size_t>((n + kRowsPerChunk - 1) / kRowsPerChunk), [&](size_t chunk) noexcept {
        const int64_t begin = static_cast<int64_t>(chunk) * kRowsPerChunk;
        const int64_t end = begin + kRowsPerChunk < n ? begin + kRowsPerChunk : n;
        for (int64_t i = begin; i < end; ++i) one(i);
      });
}

}  // namespace cutaway::ops
