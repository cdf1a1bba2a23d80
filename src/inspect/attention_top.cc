#include "inspect/attention_top.h"

#include <algorithm>
#include <cstring>
#include <new>

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
  if (first_position_ < 0) first_position_ = event.first_position;
  if (n_heads_ == 0) n_heads_ = event.n_heads;
  CUTAWAY_CHECK(event.k == k_ && event.n_heads == n_heads_);
  Layer& layer = layers_[static_cast<size_t>(event.layer)];
  for (int64_t begin = 0; begin < event.n;) {
    if (layer.current == layer.parts.size()) layer.parts.push_back(make_part(event.n - begin));
    Part& part = layer.parts[layer.current];
    if (part.n == part.room) {
      ++layer.current;
      continue;
    }
    const int64_t n = std::min(event.n - begin, part.room - part.n);
    const int64_t from = begin * n_heads_, to = part.n * n_heads_, rows = n * n_heads_;
    std::copy_n(event.keys + from * k_, rows * k_, part.keys + to * k_);
    std::copy_n(event.probabilities + from * k_, rows * k_, part.probabilities + to * k_);
    std::copy_n(event.rest + from, rows, part.rest + to);
    std::copy_n(event.entropy + from, rows, part.entropy + to);
    part.n += n;
    begin += n;
  }
  layer.n += event.n;
  CUTAWAY_OUT(span, "rows", event.n * event.n_heads);
}

AttentionTop::Part AttentionTop::make_part(int64_t positions) {
  Part out;
  out.room = std::max<int64_t>(positions, 64);  // an answer comes token by token
  const int64_t rows = out.room * n_heads_;
  auto* memory = reinterpret_cast<float*>(
      memory_.take(static_cast<size_t>(rows * (2 * k_ + 2)) * sizeof(float)));
  if (memory == nullptr) throw std::bad_alloc();
  out.keys = reinterpret_cast<int32_t*>(memory);
  out.probabilities = memory + rows * k_;
  out.rest = memory + 2 * rows * k_;
  out.entropy = out.rest + rows;
  return out;
}

void AttentionTop::clear() {
  CUTAWAY_SPAN(span, "inspect::AttentionTop::clear", "position", first_position_);
  first_position_ = -1;
  for (Layer& layer : layers_) {
    layer.current = 0;
    layer.n = 0;
    for (Part& part : layer.parts) part.n = 0;
  }
  CUTAWAY_OUT(span, "layers", layers_.size());
}

trace::TapRange AttentionTop::seen() const {
  const int64_t begin = std::max<int64_t>(0, first_position_);
  int64_t rows = 0;
  for (const Layer& layer : layers_) rows = std::max(rows, layer.n);
  return {begin, begin + rows};
}

Status AttentionTop::check(const trace::TapRange& range) const {
  CUTAWAY_SPAN(span, "inspect::AttentionTop::check", "begin", range.begin, "end", range.end);
  for (size_t l = 0; l < of_.size(); ++l) {
    const bool whole = range.begin >= first_position_ && n_heads_ > 0 &&
                       layers_[l].n >= range.end - first_position_;
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

// Rows of `width` numbers are turned from {position, head} to {head, position}.
void AttentionTop::copy(size_t i, std::span<const int32_t> heads, const trace::TapRange& range,
                        float* to) const {
  CUTAWAY_SPAN(span, "inspect::AttentionTop::copy", "tensor", i, "positions", range.size());
  size_t l = 0;
  for (size_t chosen = i / 4; !of_[l] || chosen-- > 0;) ++l;
  const Layer& layer = layers_[l];
  CUTAWAY_CHECK(range.begin >= first_position_ && layer.n >= range.end - first_position_);
  const int64_t kept = heads.empty() ? n_heads_ : static_cast<int64_t>(heads.size());
  const int64_t width = i % 4 < 2 ? k_ : 1;
  int64_t at = first_position_;  // where the part begins
  for (const Part& part : layer.parts) {
    const void* const of_kind[] = {part.keys, part.probabilities, part.rest, part.entropy};
    const auto* const from = static_cast<const float*>(of_kind[i % 4]);
    const int64_t begin = std::max(range.begin, at), end = std::min(range.end, at + part.n);
    for (int64_t h = 0; h < kept; ++h) {
      const int64_t head = heads.empty() ? h : heads[static_cast<size_t>(h)];
      for (int64_t p = begin; p < end; ++p) {
        std::memcpy(to + (h * range.size() + p - range.begin) * width,
                    from + ((p - at) * n_heads_ + head) * width,
                    static_cast<size_t>(width) * sizeof(float));
      }
    }
    at += part.n;
  }
  CUTAWAY_OUT(span, "layer", l);
}

void AttentionTop::write(formats::SafetensorsWriter& writer, size_t first,
                         std::span<const int32_t> heads, const trace::TapRange& range) const {
  CUTAWAY_SPAN(span, "inspect::AttentionTop::write", "first", first);
  std::vector<float> values;
  const auto all = tensors(heads, n_heads_, range);
  for (size_t i = 0; i < all.size(); ++i) {
    values.resize(static_cast<size_t>(all[i].elements()));
    copy(i, heads, range, values.data());
    writer.write(first + i, 0, values);
  }
  CUTAWAY_OUT(span, "end", first + all.size());
}

}  // namespace cutaway::inspect
