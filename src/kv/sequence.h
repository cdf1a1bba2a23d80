// One sequence's keys and values: a table of pages, and how many positions are filled.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/page_pool.h"

namespace cutaway::kv {

// Owned by the engine's thread. The pool must outlive it.
class Sequence {
 public:
  explicit Sequence(PagePool& pool) : pool_(&pool) {}
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  // Positions whose keys and values of every layer are there.
  int64_t length() const { return length_; }
  int64_t page_count() const { return static_cast<int64_t>(pages_.size()); }
  const Geometry& geometry() const { return pool_->geometry(); }

  // Makes room for positions [0, n). On error (kTooLarge) nothing has changed.
  Status reserve(int64_t n);
  // After a forward pass wrote the positions up to n. Precondition: reserved.
  void set_length(int64_t n);
  // Forgets positions from n on and gives whole pages back.
  void truncate(int64_t n);

  // The tile of page `page` for a layer and KV head. Precondition: page < page_count().
  kernels::KvTile tile(int64_t layer, int64_t head, int64_t page) const;
  // Where keys and values of that tile are written.
  uint8_t* key_data(int64_t layer, int64_t head, int64_t page);
  uint8_t* value_data(int64_t layer, int64_t head, int64_t page);

 private:
  uint8_t* tile_data(int64_t layer, int64_t head, int64_t page) const;

  PagePool* pool_;
  std::vector<uint8_t*> pages_;
  int64_t length_ = 0;
};

}  // namespace cutaway::kv
