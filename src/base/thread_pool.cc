#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/cpu_quota.h"

namespace cutaway {
namespace {

// A waiting thread spins this long before it sleeps: longer than the serial code between two
// operators of a forward pass, far shorter than a scheduler's time slice.
constexpr int64_t kSpinNs = 50'000;
// With more threads than processors a spinning thread takes the time of one that has work.
constexpr int64_t kCrowdedSpinNs = 2'000;
// A worker whose processor is given to another program while it holds a chunk makes everyone wait
// for a whole time slice. Such a worker gets no chunks for a while, at first kParkNs, at most
// kMaxParkNs.
constexpr int64_t kStragglerNs = 400'000;
constexpr int64_t kParkNs = 4'000'000;
// Of windows of kLookNs to kStaleNs the caller looks how much of the time another program had its
// processor. From an eighth on, twice in a row, it takes a worker's, which stays away for
// kMakeRoomNs at first: the scheduler leaves a thread that never waits where it is, for seconds
// sometimes.
constexpr int64_t kLookNs = 5'000'000;
constexpr int64_t kStaleNs = 40'000'000;
constexpr int64_t kMakeRoomNs = 50'000'000;
constexpr int64_t kMaxParkNs = 500'000'000;

inline void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Spins until done() or until the time is over; says whether done() held.
template <typename Done>
bool spin_until(int64_t spin_ns, Done&& done) noexcept {
  constexpr int kPausesPerLook = 32;  // the clock is read between groups of pauses
  int64_t end = 0;
  for (;;) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (done()) return true;
      pause();
    }
    const int64_t now = now_ns();
    if (end == 0) end = now + spin_ns;
    if (now >= end) return done();
  }
}

constexpr size_t kLine = 64;

// A thread's share of a job: the job's number in the high half, then the first and the last + 1 of
// the chunks that nobody has taken. Its owner takes from the front, the others, once their own
// share is empty, from the back; so threads that keep pace touch no line of each other. Who takes a
// chunk by compare-and-swap holds a chunk of exactly the job whose number it saw, and that job
// cannot end before this chunk is accounted for: its description is safe to read.
constexpr uint64_t kMaxUnits = 0xFFFF;
constexpr uint64_t share_of(uint32_t job, uint64_t begin, uint64_t end) noexcept {
  return static_cast<uint64_t>(job) << 32 | begin << 16 | end;
}
constexpr uint32_t job_of(uint64_t share) noexcept { return static_cast<uint32_t>(share >> 32); }
constexpr uint64_t begin_of(uint64_t share) noexcept { return share >> 16 & kMaxUnits; }
constexpr uint64_t end_of(uint64_t share) noexcept { return share & kMaxUnits; }

enum WorkerState : int { kAwake, kAsleep };

// How often the scheduler took the processor from the calling thread against its will.
long preemptions() noexcept {
  struct rusage usage{};
  return ::getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

// For how long the calling thread had a processor. (What getrusage says is a clock tick behind.)
int64_t thread_cpu_ns() noexcept {
  struct timespec time{};
  return ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0
             ? time.tv_sec * 1'000'000'000 + time.tv_nsec
             : 0;
}

// The processor after `cpu` among those that the calling thread may use.
int next_allowed(int cpu) noexcept {
  cpu_set_t allowed;
  if (cpu < 0 || ::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return -1;
  for (int i = 1; i <= CPU_SETSIZE; ++i) {
    if (CPU_ISSET((cpu + i) % CPU_SETSIZE, &allowed)) return (cpu + i) % CPU_SETSIZE;
  }
  return -1;
}

// Moves the calling thread to a processor, and leaves it free to go on from there.
void move_to(int cpu) noexcept {
  cpu_set_t allowed, one;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed)) return;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  if (::sched_setaffinity(0, sizeof one, &one) == 0) {
    ::sched_setaffinity(0, sizeof allowed, &allowed);
  }
}

// Signals are for the program's own threads.
class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~BlockSignals() { ::pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }

 private:
  sigset_t saved_;
};

}  // namespace

struct ThreadPool::Impl {
  struct alignas(kLine) Share {
    std::atomic<uint64_t> left{0};
  };
  struct alignas(kLine) Worker {
    std::atomic<int> state{kAwake};
    std::atomic<bool> parked{false};
    std::atomic<int> cpu{-1};  // where it last began a job
    // Left by a worker that finishes a chunk while the caller sleeps: when, and whether it had
    // lost its processor since the last time.
    std::atomic<int64_t> late_ns{0};
    std::atomic<bool> was_preempted{false};
    long preemptions_seen = 0;  // the worker's own
    // The caller's.
    int64_t parked_until = 0;
    int64_t park_ns = kParkNs;
    std::thread thread;
  };

  alignas(kLine) std::atomic<uint64_t> unfinished{0};  // units not yet accounted for
  std::atomic<bool> caller_sleeps{false};
  alignas(kLine) std::atomic<bool> stop{false};
  std::atomic<bool> running{false};
  // The job. Written while no unit is out, published by the stores to the shares.
  uint32_t job = 0;
  size_t n_chunks = 0;
  size_t unit = 1;  // chunks that are taken at a time: 1, but for more than kMaxUnits
  ChunkFn body = nullptr;
  void* context = nullptr;
  std::unique_ptr<Share[]> shares;  // the caller's, then one per worker

  // The caller's window: when it began, its preemptions and processor time then, and what it slept
  // of it.
  int64_t window_start = 0;
  int64_t window_slept = 0;
  long window_preemptions = 0;
  int64_t window_cpu_ns = 0;
  bool window_lost = false;  // so was the window before

  int64_t spin_ns = kSpinNs;
  size_t n_workers = 0;
  size_t n_parked = 0;
  std::unique_ptr<Worker[]> storage;

  std::span<Worker> workers() const { return {storage.get(), n_workers}; }

  void start(size_t wanted);
  void run_unit(uint64_t index) noexcept;
  size_t work(uint32_t job, size_t own, Worker* self) noexcept;
  void divide(uint64_t units) noexcept;
  void note_late(Worker& self) noexcept;
  void worker_loop(size_t own, Worker& self) noexcept;
  void wake() noexcept;
  void wait_for_others(int64_t started, size_t own_chunks) noexcept;
  void park(Worker& worker, int64_t from, int64_t least) noexcept;
  void park_stragglers(int64_t late_after) noexcept;
  void look_after_caller(int64_t now) noexcept;
  void make_room(int64_t now) noexcept;
  void unpark() noexcept;
};

void ThreadPool::Impl::start(size_t wanted) {
  storage = std::make_unique<Worker[]>(wanted);
  shares = std::make_unique<Share[]>(wanted + 1);
  const BlockSignals block;
  for (; n_workers < wanted; ++n_workers) {
    Worker& worker = storage[n_workers];
    try {
      worker.thread =
          std::thread([this, own = n_workers + 1, &worker] { worker_loop(own, worker); });
    } catch (const std::exception&) {
      return;  // no more threads, or no memory for one: the pool works with those it has
    }
    const std::string name = "cutaway-" + std::to_string(n_workers + 1);
    ::pthread_setname_np(worker.thread.native_handle(), name.c_str());
  }
}

void ThreadPool::Impl::run_unit(uint64_t index) noexcept {
  const size_t end = std::min((index + 1) * unit, n_chunks);
  for (size_t chunk = index * unit; chunk < end; ++chunk) body(context, chunk);
}

// Takes units of this job, of its own share first, until none is left. Returns how many it did.
size_t ThreadPool::Impl::work(uint32_t this_job, size_t own, Worker* self) noexcept {
  size_t done = 0;
  const size_t n_shares = n_workers + 1;
  for (size_t i = 0; i < n_shares; ++i) {
    const bool mine = i == 0;
    std::atomic<uint64_t>& left = shares[(own + i) % n_shares].left;
    uint64_t seen = left.load(std::memory_order_acquire);
    while (job_of(seen) == this_job && begin_of(seen) < end_of(seen)) {
      const uint64_t begin = begin_of(seen), end = end_of(seen);
      const uint64_t rest =
          mine ? share_of(this_job, begin + 1, end) : share_of(this_job, begin, end - 1);
      if (!left.compare_exchange_weak(seen, rest, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
        continue;
      }
      run_unit(mine ? begin : end - 1);
      ++done;
      if (self != nullptr && caller_sleeps.load(std::memory_order_relaxed)) note_late(*self);
      seen = left.load(std::memory_order_acquire);
    }
  }
  // Once this accounts for the units the job may change: nothing of it is read below.
  if (done > 0 && unfinished.fetch_sub(done, std::memory_order_seq_cst) == done &&
      self != nullptr && caller_sleeps.load(std::memory_order_seq_cst)) {
    unfinished.notify_one();
  }
  return done;
}

void ThreadPool::Impl::note_late(Worker& self) noexcept {
  const long now = preemptions();
  self.was_preempted.store(now != self.preemptions_seen, std::memory_order_relaxed);
  self.preemptions_seen = now;
  self.late_ns.store(now_ns(), std::memory_order_relaxed);
}

void ThreadPool::Impl::worker_loop(size_t own, Worker& self) noexcept {
  uint32_t last_job = 0;
  const std::atomic<uint64_t>& share = shares[own].left;
  for (;;) {
    const auto has_news = [&] {
      return stop.load(std::memory_order_relaxed) ||
             (!self.parked.load(std::memory_order_relaxed) &&
              job_of(share.load(std::memory_order_acquire)) != last_job);
    };
    if (!spin_until(self.parked.load(std::memory_order_relaxed) ? 0 : spin_ns, has_news)) {
      // The caller publishes a job, then looks for sleepers; a worker says that it sleeps, then
      // looks for a job. One of the two sees the other.
      self.state.store(kAsleep, std::memory_order_seq_cst);
      const bool idle = !stop.load(std::memory_order_seq_cst) &&
                        (self.parked.load(std::memory_order_seq_cst) ||
                         job_of(share.load(std::memory_order_seq_cst)) == last_job);
      if (idle) self.state.wait(kAsleep, std::memory_order_seq_cst);
      self.state.store(kAwake, std::memory_order_seq_cst);
    }
    if (stop.load(std::memory_order_acquire)) return;
    if (self.parked.load(std::memory_order_relaxed)) continue;
    last_job = job_of(share.load(std::memory_order_acquire));
    self.cpu.store(::sched_getcpu(), std::memory_order_relaxed);
    work(last_job, own, &self);
  }
}

// Gives each thread that takes part its share of the units; the caller is the first.
void ThreadPool::Impl::divide(uint64_t units) noexcept {
  const uint64_t takers = std::min<uint64_t>(units, n_workers - n_parked + 1);
  const auto share = [&](uint64_t i) {
    return share_of(job, units * i / takers, units * (i + 1) / takers);
  };
  uint64_t given = 1;
  for (size_t i = 0; i < n_workers && given < takers; ++i) {
    if (storage[i].parked.load(std::memory_order_relaxed)) continue;
    shares[i + 1].left.store(share(given++), std::memory_order_seq_cst);
  }
  shares[0].left.store(share(0), std::memory_order_seq_cst);
}

// Wakes the sleeping ones among the workers that have a share. Those that spin see it.
void ThreadPool::Impl::wake() noexcept {
  for (size_t i = 0; i < n_workers; ++i) {
    if (job_of(shares[i + 1].left.load(std::memory_order_relaxed)) != job) continue;
    Worker& worker = storage[i];
    int asleep = kAsleep;
    if (worker.state.load(std::memory_order_seq_cst) == kAsleep &&
        worker.state.compare_exchange_strong(asleep, kAwake, std::memory_order_seq_cst)) {
      worker.state.notify_one();
    }
  }
}

// From `from` on, for at least `least`. One that has to be parked again before it worked for as
// long as it was away stays away for longer.
void ThreadPool::Impl::park(Worker& worker, int64_t from, int64_t least) noexcept {
  const bool again =
      worker.parked_until != 0 && from - worker.parked_until < std::max(4 * least, worker.park_ns);
  worker.park_ns = again ? std::min(std::max(2 * worker.park_ns, least), kMaxParkNs) : least;
  worker.parked_until = from + worker.park_ns;
  worker.parked.store(true, std::memory_order_seq_cst);
  ++n_parked;
}

void ThreadPool::Impl::look_after_caller(int64_t now) noexcept {
  const int64_t wall = now - window_start;
  if (wall < kLookNs) return;
  const long count = preemptions();
  const int64_t cpu_ns = thread_cpu_ns();
  // An older window holds what the caller did between jobs, too.
  const bool lost = wall < kStaleNs && count != window_preemptions &&
                    wall - (cpu_ns - window_cpu_ns) - window_slept > wall / 8;
  // Once may be some program's passing moment; twice in a row is a neighbour.
  if (lost && window_lost) make_room(now);
  window_lost = lost && !window_lost;
  window_start = now;
  window_slept = 0;
  window_preemptions = count;
  window_cpu_ns = cpu_ns;
}

// Parks a worker, the one on the caller's own processor if there is one, and takes the processor of
// another. When all are parked already, the caller tries a processor that they left, or the next
// one.
void ThreadPool::Impl::make_room(int64_t now) noexcept {
  const int here = ::sched_getcpu();
  Worker* leaves = nullptr;
  int free_cpu = -1;
  for (Worker& worker : workers()) {
    const int cpu = worker.cpu.load(std::memory_order_relaxed);
    if (worker.parked.load(std::memory_order_relaxed)) {
      if (cpu != here) free_cpu = cpu;
    } else if (leaves == nullptr || cpu == here) {
      leaves = &worker;
    }
  }
  if (leaves != nullptr) {
    park(*leaves, now, kMakeRoomNs);
    const int cpu = leaves->cpu.load(std::memory_order_relaxed);
    if (cpu != here) move_to(cpu);
  } else {
    move_to(free_cpu >= 0 ? free_cpu : next_allowed(here));
  }
}

void ThreadPool::Impl::park_stragglers(int64_t late_after) noexcept {
  for (Worker& worker : workers()) {
    const int64_t late = worker.late_ns.load(std::memory_order_relaxed);
    if (late < late_after || !worker.was_preempted.load(std::memory_order_relaxed) ||
        worker.parked.load(std::memory_order_relaxed)) {
      continue;
    }
    park(worker, late, kParkNs);
  }
}

void ThreadPool::Impl::unpark() noexcept {
  const int64_t now = now_ns();
  for (Worker& worker : workers()) {
    if (!worker.parked.load(std::memory_order_relaxed) || now < worker.parked_until) continue;
    worker.parked.store(false, std::memory_order_seq_cst);
    --n_parked;
  }
}

void ThreadPool::Impl::wait_for_others(int64_t started, size_t own_chunks) noexcept {
  const auto all_done = [&] { return unfinished.load(std::memory_order_acquire) == 0; };
  if (all_done()) return;
  const int64_t since = now_ns();
  if (spin_until(spin_ns, all_done)) return;

  caller_sleeps.store(true, std::memory_order_seq_cst);
  while (const uint64_t left = unfinished.load(std::memory_order_seq_cst)) {
    unfinished.wait(left, std::memory_order_seq_cst);
  }
  caller_sleeps.store(false, std::memory_order_relaxed);
  window_slept += now_ns() - since;
  // Without chunks of our own there is no measure of how long one may take.
  if (own_chunks == 0) return;
  park_stragglers(since + kStragglerNs + 4 * (since - started) / static_cast<int64_t>(own_chunks));
}

ThreadPool::ThreadPool(int n_threads) : impl_(std::make_unique<Impl>()) {
  const int cpus = usable_cpus();
  if (n_threads <= 0) n_threads = cpus;
  if (n_threads > cpus) impl_->spin_ns = kCrowdedSpinNs;
  impl_->start(static_cast<size_t>(n_threads - 1));
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true, std::memory_order_seq_cst);
  for (Impl::Worker& worker : impl_->workers()) {
    worker.state.store(kAwake, std::memory_order_seq_cst);
    worker.state.notify_one();
  }
  for (Impl::Worker& worker : impl_->workers()) worker.thread.join();
}

int ThreadPool::size() const { return static_cast<int>(impl_->n_workers) + 1; }

void ThreadPool::run(size_t n_chunks, ChunkFn body, void* context) {
  Impl& impl = *impl_;
  CUTAWAY_CHECK(!impl.running.exchange(true, std::memory_order_relaxed));
  if (impl.n_parked > 0) impl.unpark();
  if (n_chunks <= 1 || impl.n_parked == impl.n_workers) {
    for (size_t chunk = 0; chunk < n_chunks; ++chunk) body(context, chunk);
  } else {
    const int64_t started = now_ns();
    impl.unit = (n_chunks + kMaxUnits - 1) / kMaxUnits;
    const uint64_t units = (n_chunks + impl.unit - 1) / impl.unit;
    ++impl.job;
    impl.n_chunks = n_chunks;
    impl.body = body;
    impl.context = context;
    impl.unfinished.store(units, std::memory_order_relaxed);
    impl.divide(units);
    impl.wake();
    impl.wait_for_others(started, impl.work(impl.job, 0, nullptr));
  }
  if (impl.n_workers > 0) impl.look_after_caller(now_ns());
  impl.running.store(false, std::memory_order_relaxed);
}

int usable_cpus() {
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
  // A machine can have more processors than cpu_set_t holds: grow the set until it fits.
  for (size_t bits = 1024; bits <= 1 << 20; bits *= 4) {
    const size_t bytes = CPU_ALLOC_SIZE(bits);
    std::vector<unsigned long> mask(bytes / sizeof(unsigned long));
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (::sched_getaffinity(0, bytes, set) == 0) {
      cpus = CPU_COUNT_S(bytes, set);
      break;
    }
  }
  const double quota = cgroup_cpu_quota("");
  // Part of a processor more is worth a thread: the quota bounds the total either way.
  if (quota > 0) cpus = std::min(cpus, static_cast<int>(std::ceil(quota)));
  return std::max(cpus, 1);
}

}  // namespace cutaway
