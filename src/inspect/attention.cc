#include "inspect/attention.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "kernels/table.h"
#include "trace/probe.h"
#include "trace/trace.h"

namespace cutaway::inspect {
namespace {

using trace::Site;

class Patterns final : public trace::Probe {
 public:
  Patterns(const AttentionPlan& plan, const kernels::KernelTable& table, ThreadPool& pool)
      : plan_(plan), table_(table), pool_(pool) {
    const size_t n = plan.tokens.size(), top = static_cast<size_t>(plan.top);
    if (beyond_standing()) {
      ones_.assign(n / kernels::kTilePositions + 1, 1.0f);
      rows_.resize(plan.heads.size());
      for (std::vector<float>& row : rows_) row.resize(ones_.size() * kernels::kTilePositions);
    }
    for (const int layer : plan.layers) {
      for (const int head : plan.heads) {
        HeadAttention& out = heads.emplace_back();
        out.layer = layer;
        out.head = head;
        out.entropy.resize(n);
        out.keys.resize(n * top, -1);
        out.weights.resize(n * top);
        if (plan.patterns) out.pattern.resize(n * (n + 1) / 2);
      }
    }
  }

  bool wants(Site site, int layer) const override {
    return site == Site::kPattern && chosen(layer) && (plan_.patterns || beyond_standing());
  }
  int64_t top_keys(int layer) const override {
    return chosen(layer) ? std::clamp<int64_t>(plan_.top, 1, kernels::kMaxTopKeys) : 0;
  }

  // On the engine's thread, after the op: the pool is free.
  void observe(const trace::TapEvent& event) override {
    HeadAttention* const first = of_layer(event.layer);
    const int64_t rows = event.values.shape[1], n_keys = event.values.shape[2];
    pool_.parallel_for(plan_.heads.size(), [&](size_t i) noexcept {
      const float* head = event.values.row(plan_.heads[i]);
      for (int64_t r = 0; r < rows; ++r) {
        const float* weights = head + r * n_keys;
        const auto q = static_cast<size_t>(event.first_position + r);
        if (beyond_standing()) largest(first[i], i, weights, q);
        if (!plan_.patterns) continue;
        uint16_t* row = first[i].pattern.data() + q * (q + 1) / 2;
        for (size_t k = 0; k <= q; ++k) row[k] = f32_to_f16(weights[k]);
      }
    });
  }

  void observe_top(const trace::AttentionTopEvent& event) override {
    HeadAttention* const first = of_layer(event.layer);
    const auto top = static_cast<size_t>(plan_.top);
    for (int64_t r = 0; r < event.n; ++r) {
      const auto q = static_cast<size_t>(event.first_position + r);
      for (size_t i = 0; i < plan_.heads.size(); ++i) {
        const int64_t at = r * event.n_heads + plan_.heads[i];
        first[i].entropy[q] = event.entropy[at];
        if (beyond_standing()) continue;
        std::copy_n(event.keys + at * event.k, top, first[i].keys.data() + q * top);
        std::copy_n(event.probabilities + at * event.k, top, first[i].weights.data() + q * top);
      }
    }
  }

  std::vector<HeadAttention> heads;

 private:
  bool chosen(int layer) const {
    return std::binary_search(plan_.layers.begin(), plan_.layers.end(), layer);
  }
  // More keys than the standing form has.
  bool beyond_standing() const { return plan_.top > kernels::kMaxTopKeys; }
  HeadAttention* of_layer(int layer) {
    const auto at = std::lower_bound(plan_.layers.begin(), plan_.layers.end(), layer);
    return heads.data() + static_cast<size_t>(at - plan_.layers.begin()) * plan_.heads.size();
  }

  // As many of the largest weights as are wanted: what was found is taken out of a copy of the row,
  // and the next ones are looked for.
  void largest(HeadAttention& out, size_t head, const float* weights, size_t q) noexcept {
    std::vector<float>& row = rows_[head];
    const auto tiles = static_cast<int64_t>(q) / kernels::kTilePositions + 1;
    std::fill(std::copy_n(weights, q + 1, row.begin()),
              row.begin() + tiles * kernels::kTilePositions, 0.0f);
    int32_t* keys = out.keys.data() + q * static_cast<size_t>(plan_.top);
    float* values = out.weights.data() + q * static_cast<size_t>(plan_.top);
    for (int64_t at = 0; at < plan_.top; at += kernels::kMaxTopKeys) {
      const int64_t k = std::min<int64_t>(kernels::kMaxTopKeys, plan_.top - at);
      kernels::TopKeys top;
      table_.attention_top(row.data(), ones_.data(), tiles, k, top);
      std::copy_n(top.index, k, keys + at);
      std::copy_n(top.value, k, values + at);
      for (int64_t i = 0; i < k; ++i) {
        if (top.index[i] >= 0) row[static_cast<size_t>(top.index[i])] = 0;
      }
    }
  }

  const AttentionPlan& plan_;
  const kernels::KernelTable& table_;
  ThreadPool& pool_;
  std::vector<std::vector<float>> rows_;  // a row of its own for each head
  std::vector<float> ones_;
};

}  // namespace

Result<AttentionOutcome> attention(inference::Runner& runner, kv::PagePool& pages, ThreadPool& pool,
                                   const AttentionPlan& plan) {
  CUTAWAY_SPAN(span, "inspect::attention", "tokens", plan.tokens, "layers", plan.layers.size(),
               "heads", plan.heads.size(), "patterns", plan.patterns);
  const arch::ModelShape& shape = runner.model().shape();
  CUTAWAY_CHECK(!plan.tokens.empty() && plan.chunk > 0 && plan.top >= 0);
  CUTAWAY_CHECK(std::is_sorted(plan.layers.begin(), plan.layers.end()));
  CUTAWAY_CHECK(plan.layers.empty() || (plan.layers.front() >= 0 &&
                                        plan.layers.back() < static_cast<int>(shape.n_layers)));
  for (const int head : plan.heads) {
    CUTAWAY_CHECK(head >= 0 && head < static_cast<int>(shape.n_heads));
  }
  Patterns patterns(plan, runner.table(), pool);
  inference::SequenceState sequence(pages);
  const auto n = static_cast<int64_t>(plan.tokens.size());
  const int64_t start = now_ns();
  runner.set_probes({&patterns});
  Status status;
  for (int64_t at = 0; status.ok(); at += plan.chunk) {
    if (plan.cancelled && plan.cancelled()) {  // after the last pass too: a short text is one
      status = Error{ErrorCode::kCancelled, "reading the attention was cancelled"};
      break;
    }
    if (at >= n) break;
    const inference::StepInput input{
        &sequence,
        plan.tokens.subspan(static_cast<size_t>(at),
                            static_cast<size_t>(std::min(plan.chunk, n - at))),
        inference::WantLogits::kNone};
    auto rows = runner.step(std::span(&input, 1));
    if (!rows.ok()) status = rows.error();
  }
  runner.set_probes({});
  CUTAWAY_TRY(status);
  AttentionOutcome out;
  out.heads = std::move(patterns.heads);
  out.forward_ns = now_ns() - start;
  CUTAWAY_OUT(span, "heads", out.heads.size(), "forward_ns", out.forward_ns);
  return out;
}

}  // namespace cutaway::inspect
