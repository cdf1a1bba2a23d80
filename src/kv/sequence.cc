#include "kv/sequence.h"

#include "base/check.h"
#include "trace/trace.h"

namespace cutaway::kv {

Sequence::~Sequence() {
  for (uint8_t* page : pages_) pool_->release(page);
}

Status Sequence::reserve(int64_t n) {
  const int64_t wanted = Geometry::pages_for(n);
  if (wanted <= page_count()) return {};
  CUTAWAY_SPAN(span, "kv::Sequence::reserve", "positions", n, "pages", page_count());
  const int64_t before = page_count();
  while (page_count() < wanted) {
    auto page = pool_->allocate();
    if (!page.ok()) {
      while (page_count() > before) {
        pool_->release(pages_.back());
        pages_.pop_back();
      }
      return page.error();
    }
    pages_.push_back(*page);
  }
  CUTAWAY_OUT(span, "pages", page_count());
  return {};
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
  return pages_[static_cast<size_t>(page)] + index * (g.key_tile_bytes() + g.value_tile_bytes());
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
