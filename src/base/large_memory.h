// Memory for what is large and stays: weights, KV pages. Straight from the system, zeroed, and in
// huge pages where the system offers them, which makes it cheap to fill and quick to walk over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace cutaway {

// Hands out parts of large mappings. A part lives until the arena does; physical memory is taken
// when it is first written.
class LargeArena {
 public:
  // A mapping holds at least `chunk_bytes`.
  explicit LargeArena(size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}
  ~LargeArena();
  LargeArena(LargeArena&& other) noexcept;
  LargeArena& operator=(LargeArena&& other) noexcept;

  // `bytes` zeroed bytes, 64-byte aligned. Null when the system gives no more.
  uint8_t* take(size_t bytes);

 private:
  struct Chunk {
    uint8_t* data;
    size_t size, used;
  };
  size_t chunk_bytes_;
  std::vector<Chunk> chunks_;
};

// Memory for std::free: huge pages from half of one on. Throws std::bad_alloc.
void* allocate_large(size_t count, size_t size);

// For a std::vector of which a large one is looked at here and there: in huge pages where the
// system offers them, so that finding where a page lies does not cost more than the look.
template <typename T>
struct LargeAllocator {
  using value_type = T;

  LargeAllocator() = default;
  template <typename U>
  LargeAllocator(const LargeAllocator<U>&) {}  // NOLINT: implicit, as an allocator's is
  T* allocate(size_t n) { return static_cast<T*>(allocate_large(n, sizeof(T))); }
  void deallocate(T* p, size_t) { std::free(p); }
  friend bool operator==(const LargeAllocator&, const LargeAllocator&) { return true; }
};
template <typename T>
using LargeVector = std::vector<T, LargeAllocator<T>>;

}  // namespace cutaway
