// How fast the machine reads memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "base/thread_pool.h"

namespace cutaway {

struct ReadBandwidth {
  double gbps = 0;          // 1e9 bytes a second, all threads together
  size_t buffer_bytes = 0;  // what was read over and over
  int streams = 0;          // places that a thread read from at a time, of the fastest way
};

// The buffer to measure with: a multiple of the last-level cache, so that it holds little of it,
// and no more than a quarter of `available_bytes` (0: not known).
size_t bandwidth_buffer_bytes(size_t last_level_cache_bytes, uint64_t available_bytes);

// Reads a buffer of about `buffer_bytes` with all threads of the pool, in several ways (1 to 8
// streams a thread, with and without prefetch hints), for about `budget_ns` in all; the fastest
// counts. Error kTooLarge when the system has no memory for the buffer.
Result<ReadBandwidth> measure_read_bandwidth(ThreadPool& pool, size_t buffer_bytes,
                                             int64_t budget_ns);

}  // namespace cutaway
