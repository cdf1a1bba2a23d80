// A text that a normaliser rewrote here and there, with a way back: which bytes of the input a byte
// of it is from.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cutaway::text {

// Where nothing was changed, which is nearly always, text() is the input itself and nothing is
// copied. The input must outlive this.
class AlignedText {
 public:
  AlignedText(const AlignedText&) = delete;
  AlignedText& operator=(const AlignedText&) = delete;

  std::string_view text() const { return text_; }
  bool changed() const { return !changes_.empty(); }

  // Byte range in the input for a range of text(). What was rewritten is one whole: a range that
  // begins or ends inside it covers all of it, so that ranges of neighbours may overlap there.
  size_t input_begin(size_t pos) const {
    const Change* change = last_before(pos);
    if (!change) return pos;
    return pos < change->out_end ? change->in_begin : pos - change->out_end + change->in_end;
  }
  size_t input_end(size_t pos) const {
    const Change* change = last_before(pos);
    // A range may end where a change begins: it then ends before it.
    if (change && change->out_begin == pos) {
      return change->out_end == pos ? change->in_end : change->in_begin;
    }
    if (!change) return pos;
    return pos < change->out_end ? change->in_end : pos - change->out_end + change->in_end;
  }

 protected:
  explicit AlignedText(std::string_view input) : text_(input), input_(input) {}

  // input[begin, end) becomes `by`. Precondition: calls ascend, ranges do not overlap.
  void replace(size_t begin, size_t end, std::string_view by) {
    out_.append(input_, copied_, begin - copied_);
    changes_.push_back({out_.size(), out_.size() + by.size(), begin, end});
    out_ += by;
    copied_ = end;
  }
  // After the last call of replace.
  void finish() {
    if (changes_.empty()) return;
    out_.append(input_, copied_);
    text_ = out_;
  }
  void undo() { changes_.clear(); }

 private:
  // A run that was rewritten.
  struct Change {
    size_t out_begin, out_end, in_begin, in_end;
  };
  // The last change that begins at or before pos of the output; null: none.
  const Change* last_before(size_t pos) const {
    size_t low = 0, high = changes_.size();
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (changes_[middle].out_begin <= pos) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low == 0 ? nullptr : &changes_[low - 1];
  }

  std::string_view text_;  // the input, or out_
  std::string_view input_;
  std::string out_;
  size_t copied_ = 0;            // input bytes that out_ already holds
  std::vector<Change> changes_;  // ascending
};

}  // namespace cutaway::text
