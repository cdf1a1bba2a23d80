#include "trace/tracer.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "trace/ring.h"

#ifdef CUTAWAY_TRACE_COVERAGE
#include "trace/coverage_runtime.h"
#endif

namespace cutaway::trace {
namespace {

// The background thread looks this often while records come, and less and less often after; a full
// half of a ring, a flush, and the first record after a rest wake it.
constexpr std::chrono::milliseconds kActivePoll{4};
constexpr std::chrono::milliseconds kIdlePoll{100};
// Records of several threads are merged by time. One that was stamped this long before a pass has
// surely been published, so only those are written, unless a ring fills.
constexpr int64_t kSettleNs = 500'000;
constexpr int64_t kFlushEveryNs = 20'000'000;
constexpr std::chrono::milliseconds kRoomPoll{5};

// Wall time as an offset to the monotonic clock, so that the order of records is that of their
// times; renewed each second to follow corrections of the system's clock.
class WallClock {
 public:
  int64_t at(int64_t monotonic_ns) {
    if (monotonic_ns - set_at_ > 1'000'000'000 || set_at_ == 0) {
      set_at_ = now_ns();
      offset_us_ = wall_us() - set_at_ / 1000;
    }
    return offset_us_ + monotonic_ns / 1000;
  }

 private:
  int64_t set_at_ = 0;
  int64_t offset_us_ = 0;
};

// The calling thread's rings, one per tracer that it ever wrote to.
struct ThreadRings {
  std::vector<std::pair<uint64_t, std::weak_ptr<Ring>>> rings;
  ~ThreadRings();
};
thread_local ThreadRings t_rings;

struct LastRing {
  uint64_t tracer_id = 0;  // 0: none
  Ring* ring = nullptr;
};
constinit thread_local LastRing t_last_ring;

ThreadRings::~ThreadRings() {
  t_last_ring = {};
  for (const auto& [id, weak] : rings) {
    if (const auto ring = weak.lock()) ring->closed.store(true, std::memory_order_release);
  }
}

uint64_t next_tracer_id() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

struct Tracer::Impl {
  struct Attached {
    std::shared_ptr<Sink> sink;
    Level level;
  };

  const uint64_t id = next_tracer_id();
  const int64_t started_ns = now_ns();
  std::atomic<Level> level{Level::kOff};
  std::atomic<int64_t> blocked_ns{0};
  alignas(64) std::atomic<bool> resting{false};  // the background thread polls slowly

  mutable std::mutex rings_mutex;
  std::vector<std::shared_ptr<Ring>> rings;
  uint32_t next_thread = 0;
  uint64_t written_by_ended_threads = 0;

  mutable std::mutex sinks_mutex;  // held while records are written to sinks
  std::vector<Attached> sinks;     // by level, highest first

  mutable std::mutex runs_mutex;
  std::deque<std::string> runs;
  int64_t first_run = 0;

  std::mutex mutex;  // guards what follows
  std::condition_variable wake_background, room, flushed;
  bool wake = false, stop = false;
  uint64_t flushes_wanted = 0, flushes_done = 0;
  std::thread background;

  // The background thread's own.
  std::array<Field, kMaxFields> fields;
  WallClock wall;
  int64_t run_index = -1;
  std::string run_name;
  bool unflushed = false;
  int64_t flushed_at = 0;

  Ring* my_ring();
  void wake_up();
  void wait_for_room(Ring& ring);
  void start();
  void loop();
  size_t drain(bool everything);
  void deliver(Ring& ring);
  void flush_sinks();
  void levels_changed();  // sinks_mutex is held
  std::vector<std::shared_ptr<Ring>> current_rings();
  std::string run_id(int64_t index) const;
};

// ---- the traced thread -------------------------------------------------------------------------

Ring* Tracer::Impl::my_ring() {
  if (t_last_ring.tracer_id == id) [[likely]]
    return t_last_ring.ring;
  auto& mine = t_rings.rings;
  std::erase_if(mine, [](const auto& entry) { return entry.second.expired(); });
  for (const auto& [tracer_id, weak] : mine) {
    if (tracer_id != id) continue;
    t_last_ring = {id, weak.lock().get()};
    return t_last_ring.ring;
  }
  std::shared_ptr<Ring> ring;
  {
    const std::lock_guard lock(rings_mutex);
    ring = std::make_shared<Ring>(next_thread++);
    rings.push_back(ring);
  }
  mine.emplace_back(id, ring);
  t_last_ring = {id, ring.get()};
  return ring.get();
}

void Tracer::Impl::wake_up() {
  {
    const std::lock_guard lock(mutex);
    wake = true;
  }
  wake_background.notify_one();
}

void Tracer::Impl::wait_for_room(Ring& ring) {
  const int64_t since = now_ns();
  wake_up();
  {
    std::unique_lock lock(mutex);
    ring.writer_waits.store(true, std::memory_order_seq_cst);
    if (ring.used() > Ring::kBytes / 2) room.wait_for(lock, kRoomPoll);
    ring.writer_waits.store(false, std::memory_order_relaxed);
  }
  blocked_ns.fetch_add(now_ns() - since, std::memory_order_relaxed);
}

void Tracer::write(RecordKind kind, Level level, const char* name, int64_t now, int64_t duration_ns,
                   const FieldList& fields) {
  const Context& context = t_context;
  PackedHeader header{};
  header.kind = kind;
  header.phase = context.phase;
  header.depth = context.depth;
  header.name = name;
  header.time = now;
  header.level = level;
  Ring& ring = *impl_->my_ring();
  while (!ring.try_write(header, duration_ns, context.at, fields)) [[unlikely]] {
    impl_->start();
    impl_->wait_for_room(ring);
  }
  // Unordered reads: a wake-up that is missed here comes with the next record or the next poll.
  if (impl_->resting.load(std::memory_order_relaxed) &&
      impl_->resting.exchange(false, std::memory_order_relaxed)) [[unlikely]] {
    impl_->wake_up();
  } else if (ring.more_than_half_full()) [[unlikely]] {
    if (!ring.writer_hurries) impl_->wake_up();
    ring.writer_hurries = true;
  } else {
    ring.writer_hurries = false;
  }
}

void Span::write_enter(const FieldList& fields) {
  Context& context = t_context;
  if (context.tracer == nullptr || entered_ns_ != 0) return;
#ifdef CUTAWAY_TRACE_COVERAGE
  coverage::span_opened();
#endif
  entered_ns_ = now_ns();
  context.tracer->write(RecordKind::kEnter, level_, name_, entered_ns_, -1, fields);
  ++context.depth;
}

void Span::write_exit(const FieldList& fields) {
  Context& context = t_context;
  if (left_ || entered_ns_ == 0 || context.tracer == nullptr) return;
  left_ = true;
  const int64_t now = now_ns();
  --context.depth;
  context.tracer->write(RecordKind::kExit, level_, name_, now, now - entered_ns_, fields);
}

void Span::finish() {
  if (!left_) write_exit(FieldList());
}

void write_event(const char* name, const FieldList& fields) {
  if (t_context.tracer == nullptr) return;
  t_context.tracer->write(RecordKind::kEvent, Level::kFunctions, name, now_ns(), -1, fields);
}

const char* PhaseSpan::follow_level(const char* name) {
  if (t_context.tracer != nullptr) t_context.level = t_context.tracer->level();
  return name;
}

Attach::Attach(Tracer* tracer) : saved_(t_context) {
  t_context.tracer = tracer;
  t_context.level = tracer == nullptr ? Level::kOff : tracer->level();
}

// ---- the background thread ---------------------------------------------------------------------

void Tracer::Impl::start() {
  const std::lock_guard lock(mutex);
  if (background.joinable()) return;
  // Signals are for the program's own threads; a closed pipe is an error of write() here.
  sigset_t all, saved;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &saved);
  background = std::thread([this] { loop(); });
  ::pthread_sigmask(SIG_SETMASK, &saved, nullptr);
  ::pthread_setname_np(background.native_handle(), "cutaway-trace");
}

void Tracer::Impl::loop() {
  auto poll = kActivePoll;
  for (;;) {
    bool stopping;
    uint64_t flushes;
    {
      std::unique_lock lock(mutex);
      resting.store(poll > kActivePoll, std::memory_order_relaxed);
      wake_background.wait_for(lock, poll,
                               [&] { return wake || stop || flushes_wanted != flushes_done; });
      resting.store(false, std::memory_order_relaxed);
      wake = false;
      stopping = stop;
      flushes = flushes_wanted;
    }
    const bool flushing = stopping || flushes != flushes_done;
    const size_t n = drain(flushing);
    if (unflushed && (flushing || n == 0 || now_ns() - flushed_at > kFlushEveryNs)) flush_sinks();
    poll = n > 0 ? kActivePoll : std::min(2 * poll, kIdlePoll);
    {
      const std::lock_guard lock(mutex);
      flushes_done = flushes;
    }
    flushed.notify_all();
    if (stopping) return;
  }
}

// A copy, so that threads can come while sinks are slow. Rings of ended threads go once empty.
std::vector<std::shared_ptr<Ring>> Tracer::Impl::current_rings() {
  const std::lock_guard lock(rings_mutex);
  std::erase_if(rings, [&](const std::shared_ptr<Ring>& ring) {
    if (!ring->closed.load(std::memory_order_acquire) || ring->used() != 0) return false;
    written_by_ended_threads += ring->written();
    return true;
  });
  return rings;
}

// Writes the records that are there at the start of the call, in the order of their times.
size_t Tracer::Impl::drain(bool everything) {
  struct Cursor {
    Ring* ring;
    uint64_t end;
    int64_t time;
  };
  const auto all = current_rings();
  bool crowded = false;
  std::vector<Cursor> cursors;
  const int64_t now = now_ns();
  for (const auto& ring : all) {
    Cursor cursor{ring.get(), ring->end(), 0};
    crowded |= ring->used() > Ring::kBytes / 2;
    if (ring->peek(cursor.end, cursor.time)) cursors.push_back(cursor);
  }
  const bool settle = all.size() > 1 && !everything && !crowded;
  const int64_t latest = settle ? now - kSettleNs : INT64_MAX;
  size_t n = 0;
  const std::lock_guard lock(sinks_mutex);
  while (!cursors.empty()) {
    auto first = cursors.begin();
    int64_t next_time = INT64_MAX;  // of the other rings
    for (auto it = cursors.begin() + 1; it < cursors.end(); ++it) {
      if (it->time < first->time) {
        next_time = first->time;
        first = it;
      } else {
        next_time = std::min(next_time, it->time);
      }
    }
    if (first->time > latest) return n;
    bool more = true;
    while (more && first->time <= std::min(next_time, latest)) {
      deliver(*first->ring);
      ++n;
      more = first->ring->peek(first->end, first->time);
    }
    if (!more) cursors.erase(first);
  }
  return n;
}

void Tracer::Impl::deliver(Ring& ring) {
  Record record;
  ring.pop(record, fields.data());
  if (ring.writer_waits.load(std::memory_order_seq_cst) && ring.used() < Ring::kBytes / 2 &&
      ring.writer_waits.exchange(false, std::memory_order_relaxed)) {
    const std::lock_guard lock(mutex);
    room.notify_all();
  }
  if (sinks.empty()) return;
  record.wall_us = wall.at(record.time_ns);
  record.time_ns -= started_ns;
  if (record.at.run >= 0) {
    if (record.at.run != run_index) {
      run_index = record.at.run;
      run_name = run_id(run_index);
    }
    record.run = run_name;
  }
  bool digests = true;
  for (const Attached& attached : sinks) {
    if (attached.level < record.level) break;
    if (digests && attached.level < Level::kTensors) {
      // From here on sinks get the shape of a tensor only.
      for (size_t i = 0; i < record.fields.size(); ++i) {
        if (fields[i].kind == FieldKind::kTensor) fields[i].tensor.has_digest = false;
      }
      digests = false;
    }
    attached.sink->write(record);
    unflushed = true;
  }
}

void Tracer::Impl::flush_sinks() {
  const std::lock_guard lock(sinks_mutex);
  for (const Attached& attached : sinks) attached.sink->flush();
  unflushed = false;
  flushed_at = now_ns();
}

// ---- the tracer --------------------------------------------------------------------------------

Tracer::Tracer() : impl_(std::make_unique<Impl>()) {}

Tracer::~Tracer() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->wake_background.notify_one();
  if (impl_->background.joinable()) impl_->background.join();
}

void Tracer::add_sink(std::shared_ptr<Sink> sink, Level level) {
  {
    const std::lock_guard lock(impl_->sinks_mutex);
    impl_->sinks.push_back({std::move(sink), level});
    impl_->levels_changed();
  }
  impl_->start();
}

void Tracer::set_level(const Sink* sink, Level level) {
  const std::lock_guard lock(impl_->sinks_mutex);
  for (auto& attached : impl_->sinks) {
    if (attached.sink.get() == sink) attached.level = level;
  }
  impl_->levels_changed();
}

void Tracer::Impl::levels_changed() {
  std::stable_sort(sinks.begin(), sinks.end(),
                   [](const Attached& a, const Attached& b) { return a.level > b.level; });
  level.store(sinks.empty() ? Level::kOff : sinks.front().level, std::memory_order_relaxed);
}

void Tracer::remove_sink(const std::shared_ptr<Sink>& sink) {
  (void)flush();
  const std::lock_guard lock(impl_->sinks_mutex);
  std::erase_if(impl_->sinks, [&](const auto& attached) { return attached.sink == sink; });
  impl_->levels_changed();
}

Level Tracer::level() const { return impl_->level.load(std::memory_order_relaxed); }

int64_t Tracer::name_run(std::string id) {
  const std::lock_guard lock(impl_->runs_mutex);
  impl_->runs.push_back(std::move(id));
  if (impl_->runs.size() > kKeptRuns) {
    impl_->runs.pop_front();
    ++impl_->first_run;
  }
  return impl_->first_run + static_cast<int64_t>(impl_->runs.size()) - 1;
}

std::string Tracer::Impl::run_id(int64_t index) const {
  const std::lock_guard lock(runs_mutex);
  const int64_t i = index - first_run;
  return i >= 0 && i < static_cast<int64_t>(runs.size()) ? runs[static_cast<size_t>(i)] : "";
}

std::string Tracer::run_id(int64_t index) const { return impl_->run_id(index); }

Status Tracer::flush() {
  {
    std::unique_lock lock(impl_->mutex);
    if (impl_->background.joinable()) {
      const uint64_t mine = ++impl_->flushes_wanted;
      impl_->wake_background.notify_one();
      impl_->flushed.wait(lock, [&] { return impl_->flushes_done >= mine; });
    }
  }
  const std::lock_guard lock(impl_->sinks_mutex);
  for (const auto& attached : impl_->sinks) CUTAWAY_TRY(attached.sink->status());
  return {};
}

Status Tracer::finish() {
  const Status flushed = flush();
  std::vector<std::shared_ptr<Sink>> sinks;  // finished without the lock: that may take seconds
  {
    const std::lock_guard lock(impl_->sinks_mutex);
    for (const auto& attached : impl_->sinks) sinks.push_back(attached.sink);
  }
  for (const auto& sink : sinks) sink->finish();
  return flushed;
}

std::vector<std::string> Tracer::warnings() const {
  std::vector<std::string> out;
  const std::lock_guard lock(impl_->sinks_mutex);
  for (const auto& attached : impl_->sinks) {
    for (std::string& warning : attached.sink->warnings()) out.push_back(std::move(warning));
  }
  return out;
}

Tracer::Stats Tracer::stats() const {
  Stats stats;
  stats.blocked_ns = impl_->blocked_ns.load(std::memory_order_relaxed);
  const std::lock_guard lock(impl_->rings_mutex);
  stats.records = impl_->written_by_ended_threads;
  for (const auto& ring : impl_->rings) stats.records += ring->written();
  return stats;
}

}  // namespace cutaway::trace
