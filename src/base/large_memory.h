// Memory for what is large and stays: weights, KV pages. Straight from the system, zeroed, and in
// huge pages where the system offers them, which makes it cheap to fill and quick to walk over.
#pragma once

#include <cstddef>
#include <cstdint>
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

}  // namespace cutaway
