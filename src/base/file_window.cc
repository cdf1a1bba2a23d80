#include "base/file_window.h"

#include <algorithm>

namespace cutaway {
namespace {
constexpr uint64_t kFill = uint64_t{256} << 10;
}  // namespace

const uint8_t* FileWindow::peek(uint64_t n) {
  CUTAWAY_CHECK(n <= left());
  static constexpr uint8_t kNothing = 0;
  if (n == 0) return &kNothing;
  if (file_.in_memory() != nullptr) return file_.in_memory() + position_;
  const bool inside = position_ >= start_ && position_ - start_ <= buffer_.size() &&
                      n <= buffer_.size() - (position_ - start_);
  if (!inside) {
    buffer_.resize(std::min(left(), std::max(n, kFill)));
    start_ = position_;
    if (Status status = file_.read(start_, buffer_); !status.ok()) {
      error_ = status.error();
      buffer_.clear();
      return nullptr;
    }
  }
  return buffer_.data() + (position_ - start_);
}

Status FileWindow::take_into(std::span<uint8_t> out) {
  CUTAWAY_CHECK(out.size() <= left());
  CUTAWAY_TRY(file_.read(position_, out));
  position_ += out.size();
  return {};
}

}  // namespace cutaway
