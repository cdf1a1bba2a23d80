#include "kv/page_pool.h"

#include "trace/trace.h"

namespace cutaway::kv {
namespace {
constexpr size_t kChunkBytes = size_t{8} << 20;  // of the system's memory at a time
}

PagePool::PagePool(const Geometry& geometry, int64_t max_pages)
    : geometry_(geometry), max_pages_(max_pages), memory_(kChunkBytes) {}

Result<Page*> PagePool::allocate() {
  CUTAWAY_SPAN(span, "kv::PagePool::allocate", "in_use", in_use_, "max_pages", max_pages_);
  if (in_use_ >= max_pages_) {
    return Error{ErrorCode::kTooLarge, "the KV cache is full: " + std::to_string(in_use_) + " of " +
                                           std::to_string(max_pages_) + " pages are in use"};
  }
  if (free_.empty()) {
    if (free_.capacity() <= all_.size()) free_.reserve(2 * all_.size() + 8);
    // Zeroed: kernels read whole key blocks, and what lies beyond a sequence's end must be finite.
    uint8_t* const data = memory_.take(static_cast<size_t>(geometry_.page_bytes()));
    if (data == nullptr) {
      return Error{ErrorCode::kTooLarge, "no memory for a KV page of " +
                                             std::to_string(geometry_.page_bytes()) + " bytes (" +
                                             std::to_string(in_use_) + " in use)"};
    }
    free_.push_back(&all_.emplace_back(Page{data}));
  }
  Page* const page = free_.back();
  free_.pop_back();
  page->users = 1;
  ++in_use_;
  CUTAWAY_OUT(span, "page_bytes", geometry_.page_bytes(), "in_use", in_use_);
  return page;
}

void PagePool::release(Page* page) {
  CUTAWAY_SPAN(span, "kv::PagePool::release", "users", page->users, "in_use", in_use_);
  if (--page->users == 0) {
    --in_use_;
    free_.push_back(page);
  }
  CUTAWAY_OUT(span, "in_use", in_use_);
}

}  // namespace cutaway::kv
