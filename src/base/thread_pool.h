// Workers that take chunks of an index range until it is empty. The caller works too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>

namespace cutaway {

// Called for each chunk: body(context, chunk) with chunk in [0, n_chunks). May run on any thread.
using ChunkFn = void (*)(void* context, size_t chunk) noexcept;

class ThreadPool {
 public:
  // n_threads counts the calling thread: 1 starts no worker. 0 means usable_cpus().
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Runs body for every chunk and returns when all are done (a full barrier: what the chunks wrote
  // is visible to the caller). Which thread takes which chunk is not fixed, so a chunk may not
  // depend on it. One caller at a time; not from inside a chunk.
  void run(size_t n_chunks, ChunkFn body, void* context);

  // The same for a callable `void(size_t chunk) noexcept`.
  template <typename F>
  void parallel_for(size_t n_chunks, F&& body) {
    run(
        n_chunks,
        [](void* context, size_t chunk) noexcept {
          (*static_cast<std::remove_reference_t<F>*>(context))(chunk);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// CPUs that this process can really use: the smaller of its affinity mask and its cgroup's quota
// (v1 and v2), at least 1.
int usable_cpus();

}  // namespace cutaway
