#include "base/large_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace cutaway {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// `size` (a multiple of kHugePage) bytes from a huge page's boundary on, or null.
uint8_t* map(size_t size) {
  const size_t with_slack = size + kHugePage;
  if (with_slack < size) return nullptr;
  void* mapped =
      ::mmap(nullptr, with_slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* begin = static_cast<uint8_t*>(mapped);
  const size_t skip =
      round_up(reinterpret_cast<uintptr_t>(begin), kHugePage) - reinterpret_cast<uintptr_t>(begin);
  if (skip > 0) ::munmap(begin, skip);
  if (skip < kHugePage) ::munmap(begin + skip + size, kHugePage - skip);
  ::madvise(begin + skip, size, MADV_HUGEPAGE);  // without it: the same bytes in small pages
  return begin + skip;
}

}  // namespace

void* allocate_large(size_t count, size_t size) {
  if (count > SIZE_MAX / 2 / size) throw std::bad_alloc();
  const size_t bytes = std::max<size_t>(count * size, 1);
  const bool huge = bytes >= kHugePage / 2;
  const size_t whole = huge ? round_up(bytes, kHugePage) : bytes;
  void* memory = huge ? std::aligned_alloc(kHugePage, whole) : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  if (huge) ::madvise(memory, whole, MADV_HUGEPAGE);
  return memory;
}

LargeArena::~LargeArena() {
  for (const Chunk& chunk : chunks_) ::munmap(chunk.data, chunk.size);
}

LargeArena::LargeArena(LargeArena&& other) noexcept
    : chunk_bytes_(other.chunk_bytes_), chunks_(std::exchange(other.chunks_, {})) {}

LargeArena& LargeArena::operator=(LargeArena&& other) noexcept {
  std::swap(chunk_bytes_, other.chunk_bytes_);
  std::swap(chunks_, other.chunks_);
  return *this;
}

uint8_t* LargeArena::take(size_t bytes) {
  if (bytes > SIZE_MAX / 2) return nullptr;
  const size_t wanted = round_up(bytes, kAlignment);
  if (chunks_.empty() || chunks_.back().size - chunks_.back().used < wanted) {
    const size_t size = round_up(std::max(wanted, chunk_bytes_), kHugePage);
    uint8_t* data = map(size);
    if (data == nullptr) return nullptr;
    chunks_.push_back({data, size, 0});
  }
  Chunk& chunk = chunks_.back();
  uint8_t* out = chunk.data + chunk.used;
  chunk.used += wanted;
  return out;
}

}  // namespace cutaway
