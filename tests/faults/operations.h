// Operations that fail in turn: operator new is replaced here, and the linker leads the C functions
// of the whole program through the __wrap_ functions below (CMakeLists.txt names them). For the one
// source file of a test program.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>

#include "base/result.h"

namespace {

enum Kind { kMemory, kFiles };
std::atomic<int64_t> g_count[2];
std::atomic<int64_t> g_failing[2] = {-1, -1};  // which operation fails; −1: none does
std::atomic<bool> g_armed{false};

bool fails(Kind kind) noexcept {
  if (!g_armed.load(std::memory_order_relaxed)) return false;
  return g_count[kind].fetch_add(1) == g_failing[kind].load();
}

}  // namespace

extern "C" {
void* __real_malloc(size_t size);
void* __real_calloc(size_t count, size_t size);
void* __real_realloc(void* old, size_t size);
int __real_posix_memalign(void** out, size_t alignment, size_t size);
void* __real_mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset);
int __real_open(const char* path, int flags, ...);
ssize_t __real_pread(int fd, void* out, size_t size, off_t offset);
int __real_fstat(int fd, struct stat* out);
ssize_t __real_write(int fd, const void* data, size_t size);
ssize_t __real_pwrite(int fd, const void* data, size_t size, off_t offset);
int __real_ftruncate(int fd, off_t size);
int __real_posix_fallocate(int fd, off_t offset, off_t size);
int __real_fsync(int fd);
int __real_rename(const char* from, const char* to);
int __real_renameat2(int from_folder, const char* from, int to_folder, const char* to,
                     unsigned flags);

void* __wrap_malloc(size_t size) { return fails(kMemory) ? nullptr : __real_malloc(size); }
void* __wrap_calloc(size_t count, size_t size) {
  return fails(kMemory) ? nullptr : __real_calloc(count, size);
}
void* __wrap_realloc(void* old, size_t size) {
  return fails(kMemory) ? nullptr : __real_realloc(old, size);
}
int __wrap_posix_memalign(void** out, size_t alignment, size_t size) {
  return fails(kMemory) ? ENOMEM : __real_posix_memalign(out, alignment, size);
}
void* __wrap_mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) {
  if (!fails(kMemory)) return __real_mmap(at, size, protection, flags, fd, offset);
  errno = ENOMEM;
  return MAP_FAILED;
}
int __wrap_open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  if (!fails(kFiles)) return __real_open(path, flags, mode);
  errno = EMFILE;
  return -1;
}
ssize_t __wrap_pread(int fd, void* out, size_t size, off_t offset) {
  if (!fails(kFiles)) return __real_pread(fd, out, size, offset);
  errno = EIO;
  return -1;
}
int __wrap_fstat(int fd, struct stat* out) {
  if (!fails(kFiles)) return __real_fstat(fd, out);
  errno = EIO;
  return -1;
}
ssize_t __wrap_write(int fd, const void* data, size_t size) {
  if (!fails(kFiles)) return __real_write(fd, data, size);
  errno = ENOSPC;
  return -1;
}
ssize_t __wrap_pwrite(int fd, const void* data, size_t size, off_t offset) {
  if (!fails(kFiles)) return __real_pwrite(fd, data, size, offset);
  errno = ENOSPC;
  return -1;
}
int __wrap_ftruncate(int fd, off_t size) {
  if (!fails(kFiles)) return __real_ftruncate(fd, size);
  errno = EFBIG;
  return -1;
}
int __wrap_posix_fallocate(int fd, off_t offset, off_t size) {
  return fails(kFiles) ? ENOSPC : __real_posix_fallocate(fd, offset, size);
}
int __wrap_fsync(int fd) {
  if (!fails(kFiles)) return __real_fsync(fd);
  errno = EIO;
  return -1;
}
int __wrap_rename(const char* from, const char* to) {
  if (!fails(kFiles)) return __real_rename(from, to);
  errno = EACCES;
  return -1;
}
int __wrap_renameat2(int from_folder, const char* from, int to_folder, const char* to,
                     unsigned flags) {
  if (!fails(kFiles)) return __real_renameat2(from_folder, from, to_folder, to, flags);
  errno = EACCES;
  return -1;
}
}

// What LeakSanitizer is not to report: a constructor of the JSON library that throws loses the
// value that it was making (docs/errors.md).
extern "C" const char* __lsan_default_suppressions();  // NOLINT: its name
extern "C" const char* __lsan_default_suppressions() { return "leak:nlohmann"; }

void* operator new(size_t size) {
  void* at = fails(kMemory) ? nullptr : __real_malloc(size == 0 ? 1 : size);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}
void* operator new(size_t size, std::align_val_t alignment) {
  void* at = nullptr;
  if (fails(kMemory) || __real_posix_memalign(&at, static_cast<size_t>(alignment), size) != 0) {
    throw std::bad_alloc();
  }
  return at;
}
// Sanitizers have one of their own, whose memory is not for std::free.
void* operator new(size_t size, const std::nothrow_t& /*form*/) noexcept {
  return fails(kMemory) ? nullptr : __real_malloc(size == 0 ? 1 : size);
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, size_t) noexcept { std::free(at); }
void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete(void* at, size_t, std::align_val_t) noexcept { std::free(at); }

namespace cutaway {
namespace {

// What `work` gives when operation `n` of a kind fails (−1: none), and how many there were.
template <typename Work>
std::pair<Result<std::string>, int64_t> with_fault(Kind kind, int64_t n, const Work& work) {
  for (auto& count : g_count) count = 0;
  g_failing[kind] = n;
  g_armed = true;
  Result<std::string> result = work();
  g_armed = false;
  g_failing[kind] = -1;
  return {std::move(result), g_count[kind].load()};
}

struct Tally {
  int64_t operations = 0, errors = 0, same = 0;
};

void print(const char* what, const Tally& tally) {
  std::printf("%s: %lld operations failed in turn: %lld errors, %lld answers as without\n", what,
              static_cast<long long>(tally.operations), static_cast<long long>(tally.errors),
              static_cast<long long>(tally.same));
}

}  // namespace
}  // namespace cutaway
