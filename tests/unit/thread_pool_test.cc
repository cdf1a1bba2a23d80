#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/cpu_features.h"
#include "base/cpu_quota.h"

namespace cutaway {
namespace {

class ThreadPoolSizes : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolSizes, EveryChunkRunsExactlyOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.size(), GetParam());
  for (const size_t n : {0, 1, 2, 3, 7, 8, 64, 1000, 4099}) {
    std::vector<std::atomic<int>> hits(n);
    pool.parallel_for(n, [&](size_t chunk) noexcept {
      ASSERT_LT(chunk, n);
      hits[chunk].fetch_add(1, std::memory_order_relaxed);
    });
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(hits[i].load(), 1) << "chunk " << i << " of " << n;
  }
}

// What chunks wrote is plain memory: the caller reads it without further synchronisation, and what
// the caller wrote before is read by the chunks. TSan checks the order, the values check the rest.
TEST_P(ThreadPoolSizes, WritesAreVisibleOnBothSidesOfTheBarrier) {
  ThreadPool pool(GetParam());
  std::vector<uint64_t> values(257, 1);
  for (int round = 0; round < 300; ++round) {
    const std::vector<uint64_t> before = values;
    pool.parallel_for(values.size(), [&](size_t i) noexcept {
      values[i] = before[i] + before[(i + 1) % before.size()];
    });
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], before[i] + before[(i + 1) % before.size()]);
    }
  }
}

// Jobs of changing sizes without a pause between them: a worker that is late for one job must never
// run it with the next one's body or size.
TEST_P(ThreadPoolSizes, BackToBackJobsDoNotMix) {
  ThreadPool pool(GetParam());
  std::mt19937 random(7);
  uint64_t jobs = 0;
  const int64_t end = now_ns() + 150'000'000;
  while (now_ns() < end) {
    const size_t n = random() % 24;
    const uint64_t job = ++jobs;
    std::array<uint64_t, 24> written{};
    pool.parallel_for(n, [&written, job](size_t chunk) noexcept { written[chunk] += job; });
    for (size_t i = 0; i < written.size(); ++i) ASSERT_EQ(written[i], i < n ? job : 0);
  }
  EXPECT_GT(jobs, 100U);
}

// Workers go to sleep when nothing comes, and come back.
TEST_P(ThreadPoolSizes, WorksAfterSleeping) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<size_t> sum{0};
    pool.parallel_for(100, [&](size_t chunk) noexcept { sum += chunk; });
    ASSERT_EQ(sum.load(), 4950U);
  }
}

INSTANTIATE_TEST_SUITE_P(OneToEight, ThreadPoolSizes, testing::Range(1, 9));

TEST(ThreadPool, ZeroMeansUsableCpus) { EXPECT_EQ(ThreadPool(0).size(), usable_cpus()); }

TEST(ThreadPool, OtherThreadsTakePart) {
  ThreadPool pool(4);
  std::set<std::thread::id> ids;
  std::mutex mutex;
  pool.parallel_for(64, [&](size_t) noexcept {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_GT(ids.size(), 1U);
}

TEST(ThreadPool, WaitsForASlowChunkOfAnotherThread) {
  ThreadPool pool(2);
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> slow_done{false};
  // Each thread takes one of the two chunks: the first one waits until the other is taken.
  std::atomic<int> taken{0};
  pool.parallel_for(2, [&](size_t) noexcept {
    taken++;
    while (taken.load() < 2) std::this_thread::yield();
    if (std::this_thread::get_id() == caller) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    slow_done = true;
  });
  EXPECT_TRUE(slow_done.load());
}

TEST(ThreadPool, IdleWorkersUseNoProcessorTime) {
  ThreadPool pool(8);
  pool.parallel_for(64, [](size_t) noexcept {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto cpu_us = [] {
    struct rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
  };
  const auto before = cpu_us();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_us() - before, 50'000);
}

TEST(ThreadPool, ManyPoolsStartAndStop) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(3);
    std::atomic<int> n{0};
    if (i % 2 == 0) pool.parallel_for(5, [&](size_t) noexcept { n++; });
    EXPECT_EQ(n.load(), i % 2 == 0 ? 5 : 0);
  }
}

// A tree of files as the kernel shows them.
class CgroupTree : public testing::Test {
 protected:
  CgroupTree()
      : root_(std::filesystem::temp_directory_path() /
              ("cutaway-cgroup-" + std::to_string(::getpid()))) {}
  ~CgroupTree() override { std::filesystem::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  double quota() { return cgroup_cpu_quota(root_.string()); }
  std::filesystem::path root_;
};

TEST_F(CgroupTree, NoFilesIsNoLimit) { EXPECT_EQ(quota(), 0); }

TEST_F(CgroupTree, V2TakesTheTightestAncestor) {
  put("proc/self/cgroup", "0::/a/b\n");
  put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), 0);
  put("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(quota(), 1.5);
  put("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(quota(), 0.5);
}

TEST_F(CgroupTree, V2InsideAContainerWhosePathIsTheHosts) {
  put("proc/self/cgroup", "0::/docker/0123\n");
  put("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_DOUBLE_EQ(quota(), 2.0);
}

TEST_F(CgroupTree, V1) {
  put("proc/self/cgroup", "4:memory:/x\n3:cpuset:/y\n2:cpu,cpuacct:/x\n");
  put("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 0);
  put("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "250000\n");
  EXPECT_DOUBLE_EQ(quota(), 2.5);
}

TEST_F(CgroupTree, NonsenseIsNoLimit) {
  put("proc/self/cgroup", "nonsense\n0::/a\n::\n:");
  put("sys/fs/cgroup/a/cpu.max", "12");
  EXPECT_EQ(quota(), 0);
  put("sys/fs/cgroup/a/cpu.max", "-5 0\n");
  EXPECT_EQ(quota(), 0);
}

TEST(CpuFeatures, AgreeWithTheCompilersOwnDetection) {
  const CpuFeatures& cpu = cpu_features();
  EXPECT_FALSE(cpu.brand.empty());
#if defined(__x86_64__)
  __builtin_cpu_init();
  EXPECT_EQ(cpu.avx2, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(cpu.fma, __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ(cpu.avx512f, __builtin_cpu_supports("avx512f") != 0);
  EXPECT_EQ(cpu.avx512bw, __builtin_cpu_supports("avx512bw") != 0);
  EXPECT_EQ(cpu.avx512vl, __builtin_cpu_supports("avx512vl") != 0);
  EXPECT_EQ(cpu.avx512dq, __builtin_cpu_supports("avx512dq") != 0);
  EXPECT_EQ(cpu.avx512_vnni, __builtin_cpu_supports("avx512vnni") != 0);
  EXPECT_EQ(cpu.avx512_bf16, __builtin_cpu_supports("avx512bf16") != 0);
  EXPECT_FALSE(cpu.neon);
#endif
  std::string line;
  for (const std::string& name : cpu.names()) line += " " + name;
  GTEST_LOG_(INFO) << cpu.brand << ":" << line << "; caches " << cpu.l1d_bytes << " "
                   << cpu.l2_bytes << " " << cpu.l3_bytes << "; usable cpus " << usable_cpus();
}

}  // namespace
}  // namespace cutaway
