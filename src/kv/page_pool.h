// The KV cache in pages: a page holds the keys and values of kTilePositions consecutive positions,
// for every layer and KV head. Pages are made when a sequence grows into them, never all at the
// start.
#pragma once

#include <cstdint>
#include <vector>

#include "base/large_memory.h"
#include "base/result.h"
#include "kernels/table.h"

namespace cutaway::kv {

struct Geometry {
  int64_t n_layers = 0, n_kv_heads = 0;
  int64_t d_k = 0, d_v = 0;  // per head
  kernels::KvType type = kernels::KvType::kF16;

  int64_t key_tile_bytes() const { return kernels::kv_tile_bytes(type, d_k); }
  int64_t value_tile_bytes() const { return kernels::kv_tile_bytes(type, d_v); }
  int64_t page_bytes() const {
    return n_layers * n_kv_heads * (key_tile_bytes() + value_tile_bytes());
  }
  // Pages that `tokens` positions take.
  static int64_t pages_for(int64_t tokens) {
    return (tokens + kernels::kTilePositions - 1) / kernels::kTilePositions;
  }
  friend bool operator==(const Geometry&, const Geometry&) = default;
};

// Gives out pages and takes them back. A page is page_bytes() of memory, 64-byte aligned: for each
// layer, for each KV head, a key tile then a value tile. It belongs to the pool, which reuses what
// it gets back and must outlive who holds one. Not thread-safe: the engine's thread owns it.
class PagePool {
 public:
  // `max_pages` is the limit that allocate() holds.
  PagePool(const Geometry& geometry, int64_t max_pages);

  // Error kTooLarge: the limit, or the system has no memory; both counts are named.
  Result<uint8_t*> allocate();
  void release(uint8_t* page);

  const Geometry& geometry() const { return geometry_; }
  int64_t pages_in_use() const { return in_use_; }
  int64_t max_pages() const { return max_pages_; }

 private:
  Geometry geometry_;
  int64_t max_pages_;
  int64_t in_use_ = 0;
  LargeArena memory_;
  std::vector<uint8_t*> free_;
};

}  // namespace cutaway::kv
