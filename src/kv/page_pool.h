// The KV cache in pages: a page holds the keys and values of kTilePositions consecutive positions,
// for every layer and KV head. Pages are made when a sequence grows into them, never all at the
// start.
#pragma once

#include <cstdint>
#include <deque>
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

// page_bytes() of memory, 64-byte aligned: for each layer, for each KV head, a key tile then a
// value tile. Who shares a page with others writes nothing there.
struct Page {
  uint8_t* data = nullptr;
  int32_t users = 0;
  bool shared() const { return users > 1; }
};

// Gives out pages and takes them back. They belong to the pool, which reuses what it gets back and
// must outlive who holds one. Not thread-safe: the engine's thread owns it.
class PagePool {
 public:
  // `max_pages` is the limit that allocate() holds.
  PagePool(const Geometry& geometry, int64_t max_pages);

  // Error kTooLarge: the limit, or the system has no memory; both counts are named.
  Result<Page*> allocate();  // with one user
  void share(Page* page) { ++page->users; }
  void release(Page* page);  // by one user; without any it may be given out again

  const Geometry& geometry() const { return geometry_; }
  int64_t pages_in_use() const { return in_use_; }
  int64_t max_pages() const { return max_pages_; }

 private:
  Geometry geometry_;
  int64_t max_pages_;
  int64_t in_use_ = 0;
  LargeArena memory_;
  std::deque<Page> all_;
  std::vector<Page*> free_;  // with room for all
};

}  // namespace cutaway::kv
