#include "kv/page_pool.h"

#include <new>
#include <utility>

#include "trace/trace.h"

namespace cutaway::kv {
namespace {
constexpr size_t kAlignment = 64;
}

Page::Page(std::unique_ptr<uint8_t[]> memory) : memory_(std::move(memory)) {
  const auto address = reinterpret_cast<uintptr_t>(memory_.get());
  data_ = memory_.get() + (kAlignment - address % kAlignment) % kAlignment;
}

PagePool::PagePool(const Geometry& geometry, int64_t max_pages)
    : geometry_(geometry), max_pages_(max_pages) {}

Result<std::unique_ptr<Page>> PagePool::allocate() {
  CUTAWAY_SPAN(span, "kv::PagePool::allocate", "in_use", in_use_, "max_pages", max_pages_);
  if (in_use_ >= max_pages_) {
    return Error{ErrorCode::kTooLarge, "the KV cache is full: " + std::to_string(in_use_) + " of " +
                                           std::to_string(max_pages_) + " pages are in use"};
  }
  std::unique_ptr<Page> page;
  if (!free_.empty()) {
    page = std::move(free_.back());
    free_.pop_back();
  } else {
    const size_t bytes = static_cast<size_t>(geometry_.page_bytes()) + kAlignment;
    // Zeroed: kernels read whole key blocks, and what lies beyond a sequence's end must be finite.
    std::unique_ptr<uint8_t[]> memory(new (std::nothrow) uint8_t[bytes]());
    if (memory == nullptr) {
      return Error{ErrorCode::kTooLarge, "no memory for a KV page of " + std::to_string(bytes) +
                                             " bytes (" + std::to_string(in_use_) + " in use)"};
    }
    page = std::make_unique<Page>(std::move(memory));
  }
  ++in_use_;
  CUTAWAY_OUT(span, "page_bytes", geometry_.page_bytes(), "in_use", in_use_);
  return page;
}

void PagePool::release(std::unique_ptr<Page> page) {
  CUTAWAY_SPAN(span, "kv::PagePool::release", "in_use", in_use_);
  --in_use_;
  free_.push_back(std::move(page));
  CUTAWAY_OUT(span, "in_use", in_use_);
}

}  // namespace cutaway::kv
