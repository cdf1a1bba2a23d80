#include "base/bandwidth.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/large_memory.h"

namespace cutaway {
namespace {

constexpr size_t kChunk = size_t{1} << 20;  // what a thread takes at a time
constexpr size_t kLine = 64;

// One chunk, from `streams` places in it at a time. What is read is returned in some form: it must
// be read.
template <int streams, size_t ahead>
uint64_t read_chunk(const uint8_t* chunk) noexcept {
  constexpr size_t kPart = kChunk / streams;
  uint64_t mixed[8] = {};
  for (size_t at = 0; at < kPart; at += kLine) {
    for (int s = 0; s < streams; ++s) {
      const uint8_t* line = chunk + static_cast<size_t>(s) * kPart + at;
      if constexpr (ahead > 0) __builtin_prefetch(line + ahead);
      uint64_t words[8];
      std::memcpy(words, line, kLine);
      for (int i = 0; i < 8; ++i) mixed[i] ^= words[i];
    }
  }
  uint64_t all = 0;
  for (const uint64_t word : mixed) all ^= word;
  return all;
}

struct Way {
  int streams;
  uint64_t (*read)(const uint8_t* chunk) noexcept;
};
constexpr Way kWays[] = {{1, read_chunk<1, 0>},    {2, read_chunk<2, 0>},
                         {4, read_chunk<4, 0>},    {8, read_chunk<8, 0>},
                         {1, read_chunk<1, 2048>}, {2, read_chunk<2, 1024>},
                         {4, read_chunk<4, 1024>}, {8, read_chunk<8, 512>}};

}  // namespace

size_t bandwidth_buffer_bytes(size_t last_level_cache_bytes, uint64_t available_bytes) {
  constexpr size_t kLeast = size_t{64} << 20, kMost = size_t{1} << 30, kSmallest = size_t{8} << 20;
  size_t bytes = std::clamp(last_level_cache_bytes * 8, kLeast, kMost);
  if (available_bytes > 0) bytes = std::min<uint64_t>(bytes, available_bytes / 4);
  return std::max(bytes, kSmallest) / kChunk * kChunk;
}

Result<ReadBandwidth> measure_read_bandwidth(ThreadPool& pool, size_t buffer_bytes,
                                             int64_t budget_ns) {
  const size_t chunks = std::max<size_t>(1, buffer_bytes / kChunk);
  LargeArena arena(0);
  uint8_t* buffer = arena.take(chunks * kChunk);
  if (buffer == nullptr) {
    return Error{ErrorCode::kTooLarge,
                 "the system has no memory for the " + std::to_string((chunks * kChunk) >> 20) +
                     " MiB that the read bandwidth is measured with",
                 "memory"};
  }
  // Pages that were never written are one page of zeros, which is in the cache.
  pool.parallel_for(chunks,
                    [&](size_t c) noexcept { std::memset(buffer + c * kChunk, 1, kChunk); });
  std::vector<uint64_t> sink(chunks);
  ReadBandwidth best;
  best.buffer_bytes = chunks * kChunk;
  const int64_t end = now_ns() + budget_ns;
  for (bool first = true; first || now_ns() < end; first = false) {
    for (const Way& way : kWays) {
      const int64_t start = now_ns();
      pool.parallel_for(chunks,
                        [&](size_t c) noexcept { sink[c] ^= way.read(buffer + c * kChunk); });
      const double gbps = static_cast<double>(best.buffer_bytes) /
                          static_cast<double>(std::max<int64_t>(1, now_ns() - start));
      if (gbps <= best.gbps) continue;
      best.gbps = gbps;
      best.streams = way.streams;
    }
  }
  // The sums must be wanted by someone.
  asm volatile("" : : "r"(sink.data()) : "memory");
  return best;
}

}  // namespace cutaway
