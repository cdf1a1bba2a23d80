#include "trace/coverage_runtime.h"

#include <link.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "trace/trace.h"

namespace cutaway::trace::coverage {
namespace {

struct Counts {
  std::atomic<void*> function{nullptr};
  std::atomic<uint64_t> entered{0};
  std::atomic<uint64_t> covered{0};   // entries that opened a span
  std::atomic<uint64_t> untraced{0};  // entries at a moment without tracing
};

// Open addressing; never grows, never moves: functions enter it from any thread at any time.
constexpr size_t kSlots = 1 << 16;
Counts g_counts[kSlots];
std::atomic<uint64_t> g_overflows{0};

struct Frame {
  Counts* counts;
  void* function;
  bool covered;
};
constexpr size_t kMaxFrames = 1024;
constinit thread_local Frame t_frames[kMaxFrames];
constinit thread_local size_t t_depth = 0;  // may exceed kMaxFrames: those frames are not kept

Counts* counts_of(void* function) noexcept {
  size_t slot = (reinterpret_cast<uintptr_t>(function) >> 4) * 0x9E3779B97F4A7C15ULL >> 48;
  for (size_t tried = 0; tried < kSlots; ++tried, slot = (slot + 1) % kSlots) {
    Counts& counts = g_counts[slot];
    void* there = counts.function.load(std::memory_order_relaxed);
    if (there == function) return &counts;
    if (there == nullptr && counts.function.compare_exchange_strong(there, function)) {
      return &counts;
    }
    if (there == function) return &counts;
  }
  g_overflows.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

void enter(void* function) noexcept {
  const size_t depth = t_depth++;
  if (depth >= kMaxFrames) {
    g_overflows.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Counts* counts = counts_of(function);
  t_frames[depth] = {counts, function, false};
  if (counts == nullptr) return;
  counts->entered.fetch_add(1, std::memory_order_relaxed);
  if (!trace::enabled()) counts->untraced.fetch_add(1, std::memory_order_relaxed);
}

// Frames that were left without an exit (longjmp) go too.
void leave(void* function) noexcept {
  if (t_depth > kMaxFrames) {
    --t_depth;
    return;
  }
  for (size_t depth = t_depth; depth-- > 0;) {
    if (t_frames[depth].function != function) continue;
    t_depth = depth;
    return;
  }
}

// The difference between an address of the program in memory and in its file.
uintptr_t load_bias() noexcept {
  uintptr_t bias = 0;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        *static_cast<uintptr_t*>(out) = info->dlpi_addr;
        return 1;  // the first one is the program itself
      },
      &bias);
  return bias;
}

// When the program ends: one JSON document at $CUTAWAY_TRACE_COVERAGE.
struct WriteAtExit {
  ~WriteAtExit() {
    const char* path = std::getenv("CUTAWAY_TRACE_COVERAGE");
    std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "we");
    if (file == nullptr) return;
    const uintptr_t bias = load_bias();
    std::fprintf(file, "{\"overflows\":%llu,\"functions\":[",
                 static_cast<unsigned long long>(g_overflows.load()));
    const char* comma = "\n";
    for (const Counts& counts : g_counts) {
      const auto address = reinterpret_cast<uintptr_t>(counts.function.load());
      if (address == 0) continue;
      std::fprintf(file, "%s{\"address\":%llu,\"entered\":%llu,\"covered\":%llu,\"untraced\":%llu}",
                   comma, static_cast<unsigned long long>(address - bias),
                   static_cast<unsigned long long>(counts.entered.load()),
                   static_cast<unsigned long long>(counts.covered.load()),
                   static_cast<unsigned long long>(counts.untraced.load()));
      comma = ",\n";
    }
    std::fprintf(file, "\n]}\n");
    std::fclose(file);
  }
};
const WriteAtExit g_write_at_exit;

}  // namespace

void span_opened() noexcept {
  if (t_depth == 0 || t_depth > kMaxFrames) return;
  Frame& top = t_frames[t_depth - 1];
  if (top.covered || top.counts == nullptr) return;
  top.covered = true;
  top.counts->covered.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace cutaway::trace::coverage

extern "C" {
void __cyg_profile_func_enter(void* function, void* site);
void __cyg_profile_func_exit(void* function, void* site);

void __cyg_profile_func_enter(void* function, void*) { cutaway::trace::coverage::enter(function); }
void __cyg_profile_func_exit(void* function, void*) { cutaway::trace::coverage::leave(function); }
}
