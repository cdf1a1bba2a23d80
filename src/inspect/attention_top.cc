#include "inspect/attention_top.h"

#include <algorithm>

#include "base/check.h"
#include "trace/trace.h"

namespace cutaway::inspect {
namespace {

constexpr const char* kNames[] = {"top_keys", "top_probs", "top_rest", "entropy"};

}  // namespace

AttentionTop::AttentionTop(int64_t k, int64_t n_layers, std::span<const int32_t> layers)
    : k_(k),
      of_(static_cast<size_t>(n_layers), layers.empty()),
      layers_(static_cast<size_t>(n_layers)) {
  for (const int32_t layer : layers) of_[static_cast<size_t>(layer)] = true;
}

void AttentionTop::observe_top(const trace::AttentionTopEvent& event) {
  CUTAWAY_SPAN(span, "inspect::AttentionTop::observe_top", "layer", event.layer, "position",
               event.first_position, "rows", event.n);
  if (first_position_ < 0) {
    first_position_ = event.first_position;
    n_heads_ = event.n_heads;
  }
  CUTAWAY_CHECK(event.k == k_ && event.n_heads == n_heads_);
  Layer& layer = layers_[static_cast<size_t>(event.layer)];
  const int64_t rows = event.n * event.n_heads;
  layer.keys.insert(layer.keys.end(), event.keys, event.keys + rows * k_);
  layer.probabilities.insert(layer.probabilities.end(), event.probabilities,
                             event.probabilities + rows * k_);
  layer.rest.insert(layer.rest.end(), event.rest, event.rest + rows);
  layer.entropy.insert(layer.entropy.end(), event.entropy, event.entropy + rows);
  CUTAWAY_OUT(span, "rows", rows);
}

trace::TapRange AttentionTop::seen() const {
  const int64_t begin = std::max<int64_t>(0, first_position_);
  int64_t rows = 0;
  for (const Layer& layer : layers_) {
    rows = std::max(rows, static_cast<int64_t>(layer.rest.size()) / std::max<int64_t>(1, n_heads_));
  }
  return {begin, begin + rows};
}

Status AttentionTop::check(const trace::TapRange& range) const {
  CUTAWAY_SPAN(span, "inspect::AttentionTop::check", "begin", range.begin, "end", range.end);
  for (size_t l = 0; l < of_.size(); ++l) {
    const auto rows = static_cast<int64_t>(layers_[l].rest.size());
    const bool whole = range.begin >= first_position_ && n_heads_ > 0 &&
                       rows >= (range.end - first_position_) * n_heads_;
    if (!of_[l] || whole) continue;
    return Error{ErrorCode::kUnsupported,
                 "the standing form of attention is not there at all positions of layer " +
                     std::to_string(l),
                 "attention_top"};
  }
  CUTAWAY_OUT(span, "layers", of_.size());
  return {};
}

std::vector<formats::SafetensorsWriter::Tensor> AttentionTop::tensors(
    std::span<const int32_t> heads, int64_t n_heads, const trace::TapRange& range) const {
  CUTAWAY_SPAN(span, "inspect::AttentionTop::tensors", "heads", heads.size());
  std::vector<formats::SafetensorsWriter::Tensor> out;
  const int64_t kept = heads.empty() ? n_heads : static_cast<int64_t>(heads.size());
  for (size_t l = 0; l < of_.size(); ++l) {
    if (!of_[l]) continue;
    for (int i = 0; i < 4; ++i) {
      std::vector<int64_t> shape{1, kept, range.size()};
      if (i < 2) shape.push_back(k_);
      out.push_back({"blocks." + std::to_string(l) + ".attn." + kNames[i], std::move(shape),
                     i == 0 ? "I32" : "F32"});
    }
  }
  CUTAWAY_OUT(span, "tensors", out.size());
  return out;
}

void AttentionTop::write(formats::SafetensorsWriter& writer, size_t first,
                         std::span<const int32_t> heads, const trace::TapRange& range) const {
  CUTAWAY_SPAN(span, "inspect::AttentionTop::write", "first", first);
  const int64_t kept = heads.empty() ? n_heads_ : static_cast<int64_t>(heads.size());
  // Rows of `width` numbers from {position, head} to {head, position}.
  std::vector<uint32_t> turned;
  const auto put = [&](const void* data, int64_t width) {
    const auto* from = static_cast<const uint32_t*>(data);
    turned.resize(static_cast<size_t>(kept * range.size() * width));
    auto to = turned.begin();
    for (int64_t i = 0; i < kept; ++i) {
      const int64_t head = heads.empty() ? i : heads[static_cast<size_t>(i)];
      for (int64_t p = range.begin; p < range.end; ++p) {
        to = std::copy_n(from + ((p - first_position_) * n_heads_ + head) * width, width, to);
      }
    }
    writer.write(first++, 0, {reinterpret_cast<const float*>(turned.data()), turned.size()});
  };
  for (size_t l = 0; l < of_.size(); ++l) {
    if (!of_[l]) continue;
    const Layer& layer = layers_[l];
    CUTAWAY_CHECK(range.begin >= first_position_ && static_cast<int64_t>(layer.rest.size()) >=
                                                        (range.end - first_position_) * n_heads_);
    put(layer.keys.data(), k_);
    put(layer.probabilities.data(), k_);
    put(layer.rest.data(), 1);
    put(layer.entropy.data(), 1);
  }
  CUTAWAY_OUT(span, "end", first);
}

}  // namespace cutaway::inspect
