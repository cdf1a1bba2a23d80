// One sequence's keys and values: a table of pages, and how many positions are filled. Pages may be
// shared with other sequences; what is written is written to pages of its own.
#pragma once

#include <cstdint>
#include <span>
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
  std::span<Page* const> pages() const { return pages_; }
  const Geometry& geometry() const { return pool_->geometry(); }

  // Makes room for positions [0, n), those from length() on to be written: a shared page that holds
  // some of them is copied. On error (kTooLarge) nothing has changed.
  Status reserve(int64_t n);
  // Begins as the first n positions that these pages hold, which are shared from now on.
  // Precondition: it is empty, and they are pages_for(n) pages of its pool.
  void begin_with(std::span<Page* const> pages, int64_t n);
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
  // The pages from `count` on; `why` again.
  Error give_back(int64_t count, const Error& why);

  PagePool* pool_;
  std::vector<Page*> pages_;
  int64_t length_ = 0;
};

}  // namespace cutaway::kv
