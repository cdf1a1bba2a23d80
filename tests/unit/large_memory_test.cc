#include "base/large_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace cutaway {
namespace {

TEST(LargeArena, PartsAreZeroedAlignedAndApart) {
  LargeArena arena(1 << 20);
  struct Part {
    uint8_t* data;
    size_t size;
  };
  std::vector<Part> parts;
  // Small ones share a mapping, a part above the chunk's size gets its own.
  for (const size_t size : {size_t{1}, size_t{63}, size_t{64}, size_t{100000}, size_t{5} << 20,
                            size_t{7}, size_t{2} << 20, size_t{1} << 20}) {
    uint8_t* data = arena.take(size);
    ASSERT_NE(data, nullptr) << size;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0U) << size;
    for (size_t i = 0; i < size; i += 97) ASSERT_EQ(data[i], 0) << size << " at " << i;
    ASSERT_EQ(data[size - 1], 0) << size;
    for (size_t i = 0; i < size; ++i) data[i] = static_cast<uint8_t>(parts.size() + 1);
    parts.push_back({data, size});
  }
  for (size_t p = 0; p < parts.size(); ++p) {
    EXPECT_EQ(parts[p].data[0], p + 1);
    EXPECT_EQ(parts[p].data[parts[p].size - 1], p + 1);
  }
}

TEST(LargeArena, MovesWithItsMemory) {
  LargeArena arena(1);
  uint8_t* data = arena.take(1000);
  data[999] = 7;
  LargeArena moved(std::move(arena));
  LargeArena other(1);
  ASSERT_NE(other.take(10), nullptr);
  other = std::move(moved);
  EXPECT_EQ(data[999], 7);
}

TEST(LargeArena, SaysWhenTheSystemGivesNoMore) {
  LargeArena arena(1 << 20);
  EXPECT_EQ(arena.take(SIZE_MAX), nullptr);
  EXPECT_EQ(arena.take(SIZE_MAX / 2), nullptr);
  EXPECT_EQ(arena.take(size_t{1} << 50), nullptr);
  EXPECT_NE(arena.take(1), nullptr);
}

}  // namespace
}  // namespace cutaway
