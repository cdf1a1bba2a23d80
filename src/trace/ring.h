// A thread's ring: one writer, one reader, records packed one after another without a lock.
//
// A record in the ring, all parts padded to eight bytes:
//   PackedHeader                                        32 bytes
//   [int64 duration_ns]                                 exits
//   [int64 run] [int32 seq, step, position, layer]…     those that are set (header.has)
//   fields as FieldList packs them
// A layer's span with all coordinates and two numbers takes 88 bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "trace/tracer.h"

namespace cutaway::trace {

struct PackedCount {  // of a text or an id list
  uint32_t full;
  uint32_t kept;
};

struct PackedTensor {
  uint8_t rank;
  uint8_t has_digest;
  uint8_t unused[6];
};

struct PackedDigest {
  float min, max, mean, l2;
  float first[4];
  uint32_t n_first, nan_count;
  uint64_t hash_high, hash_low;
};
static_assert(sizeof(PackedDigest) % 8 == 0);

struct PackedHeader {
  uint32_t size;  // of the whole record
  RecordKind kind;
  Phase phase;
  uint16_t depth;
  const char* name;
  int64_t time;  // now_ns()
  uint32_t field_kinds;
  uint8_t n_fields;
  uint8_t has;  // bits: duration, run, seq, step, position, layer
  Level level;
  uint8_t unused;
};
static_assert(sizeof(PackedHeader) == 32);

class Ring {
 public:
  static constexpr uint64_t kBytes = 256 * 1024;

  explicit Ring(uint32_t thread) : thread_(thread), bytes_(new uint8_t[kBytes]) {}

  // Writer. False when there is no room, and then nothing is written.
  bool try_write(PackedHeader header, int64_t duration_ns, const Coordinates& at,
                 const FieldList& fields) noexcept;
  // Writer, after try_write: whether the reader should hurry.
  bool more_than_half_full() noexcept;

  // Reader. The end of what is written now; records below it may be read.
  uint64_t end() const noexcept { return head_.load(std::memory_order_acquire); }
  // The time of the first unread record, which must be below `end`; skips the gap at the wrap.
  // Returns false when there is no record below `end`.
  bool peek(uint64_t end, int64_t& time) noexcept;
  // Unpacks the record that peek saw and frees its room. `fields` has kMaxFields elements and
  // outlives the record.
  void pop(Record& record, Field* fields) noexcept;
  uint64_t used() const noexcept {
    return head_.load(std::memory_order_acquire) - tail_.load(std::memory_order_acquire);
  }

  uint32_t thread() const noexcept { return thread_; }
  uint64_t written() const noexcept { return written_.load(std::memory_order_relaxed); }

  std::atomic<bool> closed{false};        // its thread has ended
  std::atomic<bool> writer_waits{false};  // for room
  bool writer_hurries = false;            // the writer's: it has woken the reader already

 private:
  const uint32_t thread_;
  std::unique_ptr<uint8_t[]> bytes_;
  alignas(64) std::atomic<uint64_t> head_{0};  // bytes ever written
  std::atomic<uint64_t> written_{0};           // records ever written
  uint64_t tail_seen_ = 0;                     // the writer's copy of tail_
  alignas(64) std::atomic<uint64_t> tail_{0};  // bytes ever read
};

}  // namespace cutaway::trace
