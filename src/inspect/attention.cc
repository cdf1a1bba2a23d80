#include "inspect/attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/clock.h"
#include "trace/probe.h"
#include "trace/trace.h"

namespace cutaway::inspect {
namespace {

using trace::Site;

// The weights of one query: keys 0 … position.
struct Query {
  const float* weights;
  int64_t position;
};

float entropy_of(const Query& query) noexcept {
  double sum = 0;
  for (int64_t k = 0; k <= query.position; ++k) {
    const float p = query.weights[k];
    if (p > 0) sum -= static_cast<double>(p * std::log(p));
  }
  return static_cast<float>(std::max(0.0, sum));
}

// The largest `top` weights above 0, by weight, then position.
void largest(const Query& query, int64_t top, int32_t* keys, float* weights) noexcept {
  int64_t found = 0;
  for (int64_t k = 0; k <= query.position; ++k) {
    const float p = query.weights[k];
    if (!(p > 0) || (found == top && (top == 0 || p <= weights[top - 1]))) continue;
    int64_t place = found < top ? found++ : found - 1;
    for (; place > 0 && weights[place - 1] < p; --place) {
      keys[place] = keys[place - 1];
      weights[place] = weights[place - 1];
    }
    keys[place] = static_cast<int32_t>(k);
    weights[place] = p;
  }
}

class Patterns final : public trace::Probe {
 public:
  Patterns(const AttentionPlan& plan, ThreadPool& pool) : plan_(plan), pool_(pool) {
    const size_t n = plan.tokens.size(), top = static_cast<size_t>(plan.top);
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
    return site == Site::kPattern &&
           std::binary_search(plan_.layers.begin(), plan_.layers.end(), layer);
  }

  // On the engine's thread, after the op: the pool is free.
  void observe(const trace::TapEvent& event) override {
    const auto layer = std::lower_bound(plan_.layers.begin(), plan_.layers.end(), event.layer) -
                       plan_.layers.begin();
    HeadAttention* const first = heads.data() + static_cast<size_t>(layer) * plan_.heads.size();
    const int64_t rows = event.values.shape[1], n_keys = event.values.shape[2];
    pool_.parallel_for(plan_.heads.size(), [&](size_t i) noexcept {
      const float* head = event.values.row(plan_.heads[i]);
      for (int64_t r = 0; r < rows; ++r) {
        take(first[i], {head + r * n_keys, event.first_position + r});
      }
    });
  }

  std::vector<HeadAttention> heads;

 private:
  void take(HeadAttention& out, const Query& query) const noexcept {
    const auto q = static_cast<size_t>(query.position), top = static_cast<size_t>(plan_.top);
    out.entropy[q] = entropy_of(query);
    largest(query, plan_.top, out.keys.data() + q * top, out.weights.data() + q * top);
    if (!plan_.patterns) return;
    uint16_t* row = out.pattern.data() + q * (q + 1) / 2;
    for (size_t k = 0; k <= q; ++k) row[k] = f32_to_f16(query.weights[k]);
  }

  const AttentionPlan& plan_;
  ThreadPool& pool_;
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
  Patterns patterns(plan, pool);
  inference::SequenceState sequence(pages);
  const auto n = static_cast<int64_t>(plan.tokens.size());
  const int64_t start = now_ns();
  runner.set_probes({&patterns});
  Status status;
  for (int64_t at = 0; at < n && status.ok(); at += plan.chunk) {
    if (plan.cancelled && plan.cancelled()) {
      status = Error{ErrorCode::kCancelled, "reading the attention was cancelled"};
      break;
    }
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
