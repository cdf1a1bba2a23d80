#include "inspect/layer_hashes.h"

#include "base/check.h"
#include "base/hash.h"
#include "trace/trace.h"

namespace cutaway::inspect {

void LayerHashes::observe(const trace::TapEvent& event) {
  CUTAWAY_SPAN(span, "inspect::LayerHashes::observe", "layer", event.layer, "position",
               event.first_position);
  if (first_position_ < 0) first_position_ = event.first_position;
  const int64_t begin = event.first_position - first_position_;
  const int64_t rows = event.values.rows();
  CUTAWAY_CHECK(begin >= 0 && event.layer >= 0 && event.layer < n_layers_);
  if (static_cast<int64_t>(hashes_.size()) < begin + rows) {
    hashes_.resize(static_cast<size_t>(begin + rows),
                   std::vector<uint64_t>(static_cast<size_t>(n_layers_)));
  }
  const size_t bytes = static_cast<size_t>(event.values.row_elements()) * sizeof(float);
  for (int64_t i = 0; i < rows; ++i) {
    hashes_[static_cast<size_t>(begin + i)][static_cast<size_t>(event.layer)] =
        xxh3_128(event.values.row(i), bytes).low;
  }
  CUTAWAY_OUT(span, "rows", rows);
}

}  // namespace cutaway::inspect
