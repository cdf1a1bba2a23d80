#include "kv/page_pool.h"

#include "trace/trace.h"

namespace cutaway::kv {
namespace {
constexpr size_t kChunkBytes = size_t{8} << 20;  // of the system's memory at a time
}

PagePool::PagePool(const Geometry& geometry, int64_t max_pages)
    : geometry_(geometry), max_pages_(max_pages), memory_(kChunkBytes) {}

Result<uint8_t*> PagePool::allocate() {
  CUTAWAY_SPAN(span, "kv::PagePool::allocate", "in_use", in_use_, "max_pages", max_pages_);
  if (in_use_ >= max_pages_) {
    return Error{ErrorCode::kTooLarge, "the KV cache is full: " + std::to_string(in_use_) + " of " +
                                           std::to_string(max_pages_) + " pages are in use"};
  }
  uint8_t* page;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    // Zeroed: kernels read whole key blocks, and what lies beyond a sequence's end must be finite.
    page = memory_.take(static_cast<size_t>(geometry_.page_bytes()));
    if (page == nullptr) {
      return Error{ErrorCode::kTooLarge, "no memory for a KV page of " +
                                             std::to_string(geometry_.page_bytes()) + " bytes (" +
                                             std::to_string(in_use_) + " in use)"};
    }
  }
  ++in_use_;
  CUTAWAY_OUT(span, "page_bytes", geometry_.page_bytes(), "in_use", in_use_);
  return page;
}

void PagePool::release(uint8_t* page) {
  CUTAWAY_SPAN(span, "kv::PagePool::release", "in_use", in_use_);
  --in_use_;
  free_.push_back(page);
  CUTAWAY_OUT(span, "in_use", in_use_);
}

}  // namespace cutaway::kv
