#include "kv/sequence.h"

#include <cstring>

#include "base/check.h"
#include "trace/trace.h"

namespace cutaway::kv {

Sequence::~Sequence() {
  for (Page* page : pages_) pool_->release(page);
}

Error Sequence::give_back(int64_t count, const Error& why) {
  while (page_count() > count) {
    pool_->release(pages_.back());
    pages_.pop_back();
  }
  return why;
}

Status Sequence::reserve(int64_t n) {
  const int64_t wanted = Geometry::pages_for(n);
  const bool copies = n > length_ && length_ % kernels::kTilePositions != 0 &&
                      pages_[static_cast<size_t>(length_ / kernels::kTilePositions)]->shared();
  if (wanted <= page_count() && !copies) return {};
  CUTAWAY_SPAN(span, "kv::Sequence::reserve", "positions", n, "pages", page_count(), "copies",
               copies);
  const int64_t before = page_count();
  if (wanted > before) pages_.reserve(static_cast<size_t>(wanted));
  while (page_count() < wanted) {
    auto page = pool_->allocate();
    if (!page.ok()) return give_back(before, page.error());
    pages_.push_back(*page);
  }
  if (copies) {
    auto page = pool_->allocate();
    if (!page.ok()) return give_back(before, page.error());
    Page*& shared = pages_[static_cast<size_t>(length_ / kernels::kTilePositions)];
    std::memcpy((*page)->data, shared->data, static_cast<size_t>(geometry().page_bytes()));
    pool_->release(shared);
    shared = *page;
  }
  CUTAWAY_OUT(span, "pages", page_count());
  return {};
}

void Sequence::begin_with(std::span<Page* const> pages, int64_t n) {
  CUTAWAY_SPAN(span, "kv::Sequence::begin_with", "positions", n, "pages", pages.size());
  CUTAWAY_CHECK(pages_.empty() && std::ssize(pages) == Geometry::pages_for(n));
  pages_.assign(pages.begin(), pages.end());
  for (Page* page : pages_) pool_->share(page);
  length_ = n;
  CUTAWAY_OUT(span, "length", length_);
}

void Sequence::set_length(int64_t n) {
  CUTAWAY_SPAN(span, "kv::Sequence::set_length", "from", length_, "to", n);
  CUTAWAY_CHECK(n >= 0 && Geometry::pages_for(n) <= page_count());
  length_ = n;
}

void Sequence::truncate(int64_t n) {
  CUTAWAY_SPAN(span, "kv::Sequence::truncate", "positions", n, "length", length_);
  CUTAWAY_CHECK(n >= 0);
  if (n < length_) length_ = n;
  while (page_count() > Geometry::pages_for(length_)) {
    pool_->release(pages_.back());
    pages_.pop_back();
  }
  CUTAWAY_OUT(span, "pages", page_count());
}

uint8_t* Sequence::tile_data(int64_t layer, int64_t head, int64_t page) const {
  const Geometry& g = geometry();
  const int64_t index = layer * g.n_kv_heads + head;
  return pages_[static_cast<size_t>(page)]->data +
         index * (g.key_tile_bytes() + g.value_tile_bytes());
}

uint8_t* Sequence::key_data(int64_t layer, int64_t head, int64_t page) {
  return tile_data(layer, head, page);
}
uint8_t* Sequence::value_data(int64_t layer, int64_t head, int64_t page) {
  return tile_data(layer, head, page) + geometry().key_tile_bytes();
}

kernels::KvTile Sequence::tile(int64_t layer, int64_t head, int64_t page) const {
  const uint8_t* data = tile_data(layer, head, page);
  return {geometry().type, data, data + geometry().key_tile_bytes()};
}

}  // namespace cutaway::kv
