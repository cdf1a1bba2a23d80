// What a process may still take, from files as the kernel shows them.
#include "base/memory_limit.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/bandwidth.h"

namespace cutaway {
namespace {

class MemoryTree : public testing::Test {
 protected:
  MemoryTree()
      : root_(std::filesystem::temp_directory_path() /
              ("cutaway-memory-" + std::to_string(::getpid()))) {}
  ~MemoryTree() override { std::filesystem::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  MemoryLimit limit() { return available_memory(root_.string()); }
  std::filesystem::path root_;
};

TEST_F(MemoryTree, NoFilesIsNotKnown) {
  EXPECT_FALSE(limit().known());
  EXPECT_EQ(limit().available_bytes, 0u);
}

TEST_F(MemoryTree, MemAvailableIsInKibibytes) {
  put("proc/meminfo", "MemTotal:       24000000 kB\nMemFree: 7 kB\nMemAvailable:    1000 kB\n");
  EXPECT_EQ(limit().available_bytes, 1'024'000u);
  EXPECT_EQ(limit().source, "MemAvailable");
}

TEST_F(MemoryTree, NothingAvailableIsKnown) {
  put("proc/meminfo", "MemAvailable:    0 kB\n");
  EXPECT_TRUE(limit().known());
}

TEST_F(MemoryTree, V2TakesTheTightestAncestor) {
  put("proc/meminfo", "MemAvailable:    1000000 kB\n");
  put("proc/self/cgroup", "0::/a/b\n");
  put("sys/fs/cgroup/a/b/memory.max", "max\n");
  put("sys/fs/cgroup/a/b/memory.current", "5000\n");
  EXPECT_EQ(limit().source, "MemAvailable");
  put("sys/fs/cgroup/a/memory.max", "1000000\n");
  put("sys/fs/cgroup/a/memory.current", "400000\n");
  EXPECT_EQ(limit().available_bytes, 600'000u);
  EXPECT_EQ(limit().source, "the cgroup's limit");
}

TEST_F(MemoryTree, FilePagesThatWouldBeDroppedCount) {
  put("proc/self/cgroup", "0::/\n");
  put("sys/fs/cgroup/memory.max", "1000000\n");
  put("sys/fs/cgroup/memory.current", "900000\n");
  put("sys/fs/cgroup/memory.stat", "anon 600000\nactive_file 1\ninactive_file 300000\n");
  EXPECT_EQ(limit().available_bytes, 400'000u);
}

TEST_F(MemoryTree, MoreInUseThanAllowedIsNothing) {
  put("proc/self/cgroup", "0::/\n");
  put("sys/fs/cgroup/memory.max", "100\n");
  put("sys/fs/cgroup/memory.current", "900\n");
  EXPECT_TRUE(limit().known());
  EXPECT_EQ(limit().available_bytes, 0u);
}

TEST_F(MemoryTree, V1WithoutALimitIsAHugeNumber) {
  put("proc/meminfo", "MemAvailable:    1000 kB\n");
  put("proc/self/cgroup", "3:cpuset:/y\n2:memory:/x\n");
  put("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "4096\n");
  EXPECT_EQ(limit().source, "MemAvailable");
  put("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "8192\n");
  EXPECT_EQ(limit().available_bytes, 4096u);
}

TEST_F(MemoryTree, NonsenseIsNoLimit) {
  put("proc/meminfo", "MemAvailable: much\n");
  put("proc/self/cgroup", "0::/a\n::\n:");
  put("sys/fs/cgroup/a/memory.max", "-1\n");
  put("sys/fs/cgroup/a/memory.current", "x\n");
  EXPECT_FALSE(limit().known());
}

TEST(AvailableMemory, OfThisMachineIsKnownAndNotMore) {
  const MemoryLimit limit = available_memory("");
  ASSERT_TRUE(limit.known());
  const auto all = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                   static_cast<uint64_t>(::sysconf(_SC_PAGE_SIZE));
  EXPECT_LE(limit.available_bytes, all);
  EXPECT_GT(limit.available_bytes, 0u);
}

TEST(Bandwidth, TheBufferIsLargeBesideTheCacheAndSmallBesideTheMemory) {
  constexpr size_t kMiB = size_t{1} << 20;
  EXPECT_EQ(bandwidth_buffer_bytes(0, 0), 64 * kMiB);
  EXPECT_EQ(bandwidth_buffer_bytes(32 * kMiB, 0), 256 * kMiB);
  EXPECT_EQ(bandwidth_buffer_bytes(512 * kMiB, 0), 1024 * kMiB);
  EXPECT_EQ(bandwidth_buffer_bytes(32 * kMiB, 400 * kMiB), 100 * kMiB);
  EXPECT_EQ(bandwidth_buffer_bytes(32 * kMiB, 1), 8 * kMiB);
}

TEST(Bandwidth, IsMeasuredWhateverTheThreadsAndTheBudget) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const auto measured = measure_read_bandwidth(pool, size_t{8} << 20, 0);
    ASSERT_TRUE(measured.ok());
    EXPECT_GT(measured->gbps, 0);
    EXPECT_EQ(measured->buffer_bytes, size_t{8} << 20);
    EXPECT_GE(measured->streams, 1);
  }
}

TEST(Bandwidth, WithoutMemoryItIsAnError) {
  ThreadPool pool(1);
  const auto measured = measure_read_bandwidth(pool, size_t{1} << 62, 0);
  ASSERT_FALSE(measured.ok());
  EXPECT_EQ(measured.error().code, ErrorCode::kTooLarge);
}

}  // namespace
}  // namespace cutaway
