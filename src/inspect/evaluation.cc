#include "inspect/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "sampling/lanes.h"
#include "trace/probe.h"
#include "trace/trace.h"

namespace cutaway::inspect {
namespace {

using trace::Site;

// The rows of a residual stream: 0 is the embedding, l + 1 what layer l leaves. −1: another site.
int stream_index(Site site, int layer) {
  if (site == Site::kEmbed) return 0;
  return site == Site::kResidPost ? layer + 1 : -1;
}

// Keeps the residual streams of one pass.
class StreamKeeper final : public trace::Probe {
 public:
  bool wants(Site site, int layer) const override { return stream_index(site, layer) >= 0; }

  void observe(const trace::TapEvent& event) override {
    const auto index = static_cast<size_t>(stream_index(event.site, event.layer));
    if (index >= streams.size()) streams.resize(index + 1);
    const int64_t d = event.values.row_elements();
    streams[index].resize(static_cast<size_t>(event.values.rows() * d));
    for (int64_t i = 0; i < event.values.rows(); ++i) {
      std::copy_n(event.values.row(i), d, streams[index].begin() + i * d);
    }
  }

  std::vector<std::vector<float>> streams;
};

// Compares a pass with the one that was kept before, of the same tokens.
class StreamComparer final : public trace::Probe {
 public:
  explicit StreamComparer(const StreamKeeper& kept) : kept_(kept) {}

  bool wants(Site site, int layer) const override { return stream_index(site, layer) >= 0; }

  void observe(const trace::TapEvent& event) override {
    const auto index = static_cast<size_t>(stream_index(event.site, event.layer));
    if (index >= sums_.size()) sums_.resize(index + 1);
    const int64_t d = event.values.row_elements();
    const float* base = kept_.streams[index].data();
    for (int64_t i = 0; i < event.values.rows(); ++i)
      add(sums_[index], event.values.row(i), base + i * d, d);
  }

  // Keeps what was added since the last call: the window is whole.
  void accept() {
    for (size_t i = 0; i < sums_.size(); ++i) {
      if (i >= accepted_.size()) accepted_.resize(sums_.size());
      accepted_[i].error += sums_[i].error;
      accepted_[i].cosine += sums_[i].cosine;
      accepted_[i].rows += sums_[i].rows;
      sums_[i] = {};
    }
  }

  std::vector<LayerDamage> means() const {
    std::vector<LayerDamage> out;
    for (const Sum& sum : accepted_) {
      const auto n = static_cast<double>(std::max<int64_t>(1, sum.rows));
      out.push_back({sum.error / n, sum.cosine / n});
    }
    return out;
  }

 private:
  struct Sum {
    double error = 0, cosine = 0;
    int64_t rows = 0;
  };

  static void add(Sum& sum, const float* x, const float* b, int64_t d) {
    double xx = 0, bb = 0, xb = 0, dd = 0;
    for (int64_t i = 0; i < d; ++i) {
      const double p = x[i], q = b[i];
      xx += p * p;
      bb += q * q;
      xb += p * q;
      dd += (p - q) * (p - q);
    }
    sum.error += bb > 0 ? std::sqrt(dd / bb) : (dd > 0 ? 1 : 0);
    sum.cosine += xx > 0 && bb > 0 ? xb / std::sqrt(xx * bb) : (xx == bb ? 1 : 0);
    ++sum.rows;
  }

  const StreamKeeper& kept_;
  std::vector<Sum> sums_, accepted_;
};

struct RowScore {
  double nll = 0, baseline_nll = 0, kl = 0;
  int32_t first = -1, baseline_first = -1;
  bool damaged = false, baseline_damaged = false;
};

// ln Σ exp(x); the scan is of the same logits.
double log_sum(std::span<const float> logits, const sampling::LogitScan& scan) {
  return static_cast<double>(scan.max) + std::log(sampling::exp_sums(logits, scan.max, 1).sum);
}

// KL(b ‖ x) from raw logits: Σ p_b (b − x) − (ln Σ exp b − ln Σ exp x). Logits of −inf (ids that do
// not exist) have no share.
double divergence(std::span<const float> b, std::span<const float> x, float b_max, double b_log_sum,
                  double x_log_sum) {
  constexpr size_t kLanes = 8;
  double weights[kLanes] = {}, sums[kLanes] = {};
  for (size_t i = 0; i < b.size(); ++i) {
    if (std::isinf(b[i])) continue;
    const double weight = sampling::exp_weight(b[i], b_max, 1);
    weights[i % kLanes] += weight;
    sums[i % kLanes] += weight * (static_cast<double>(b[i]) - static_cast<double>(x[i]));
  }
  double weight = 0, sum = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    weight += weights[lane];
    sum += sums[lane];
  }
  return std::max(0.0, sum / weight - b_log_sum + x_log_sum);  // ≥ 0 but for rounding
}

void score_row(std::span<const float> x, std::span<const float> b, int32_t next, RowScore& out) {
  const sampling::LogitScan scan = sampling::scan_logits(x);
  out.damaged = scan.damaged || scan.argmax < 0;
  if (out.damaged) return;
  const double x_log_sum = log_sum(x, scan);
  out.first = scan.argmax;
  out.nll = x_log_sum - static_cast<double>(x[static_cast<size_t>(next)]);
  if (b.empty()) return;
  const sampling::LogitScan base = sampling::scan_logits(b);
  out.baseline_damaged = base.damaged || base.argmax < 0;
  if (out.baseline_damaged) return;
  const double b_log_sum = log_sum(b, base);
  out.baseline_first = base.argmax;
  out.baseline_nll = b_log_sum - static_cast<double>(b[static_cast<size_t>(next)]);
  out.kl = divergence(b, x, base.max, b_log_sum, x_log_sum);
}

class Evaluation {
 public:
  Evaluation(const Evaluated& model, const Evaluated* baseline, ThreadPool& pool,
             const EvaluationPlan& plan)
      : model_(model), baseline_(baseline), pool_(pool), plan_(plan), comparer_(keeper_) {
    if (baseline_ == nullptr || !plan_.layers) return;
    baseline_->runner.set_probes({&keeper_});
    model_.runner.set_probes({&comparer_});
  }
  ~Evaluation() {
    model_.runner.set_probes({});
    if (baseline_ != nullptr) baseline_->runner.set_probes({});
  }
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

  // Window w; false when `go_on` said so on the way.
  template <typename GoOn>
  Result<bool> window(int64_t w, const GoOn& go_on) {
    const auto size = static_cast<size_t>(plan_.window);
    std::vector<int32_t> tokens(size);
    std::copy_n(plan_.tokens.begin() + w * plan_.window, size, tokens.begin());
    if (plan_.bos >= 0) tokens[0] = plan_.bos;
    inference::SequenceState sequence(model_.pages);
    std::optional<inference::SequenceState> base_sequence;
    if (baseline_ != nullptr) base_sequence.emplace(baseline_->pages);
    scores_.clear();
    for (int64_t at = 0; at < plan_.window;) {
      // The context that is not scored needs no logits: a pass ends where it does.
      const bool scored = at >= plan_.warmup;
      const int64_t end = scored ? plan_.window : std::min(plan_.warmup, plan_.window);
      const int64_t n = std::min(plan_.chunk, end - at);
      const std::span part(tokens.data() + at, static_cast<size_t>(n));
      CUTAWAY_TRY(
          pass(sequence, base_sequence ? &*base_sequence : nullptr, part, scored, at, tokens));
      at += n;
      if (!go_on(w * plan_.window + at)) return false;
    }
    return true;
  }

  void accept(EvaluationOutcome& out) {
    for (const RowScore& score : scores_) {
      const int32_t next = nexts_[static_cast<size_t>(&score - scores_.data())];
      out.nll.push_back(score.nll);
      out.hit.push_back(score.first == next ? 1 : 0);
      if (baseline_ == nullptr) continue;
      out.baseline_nll.push_back(score.baseline_nll);
      out.baseline_hit.push_back(score.baseline_first == next ? 1 : 0);
      out.agrees.push_back(score.first == score.baseline_first ? 1 : 0);
      out.kl.push_back(score.kl);
    }
    comparer_.accept();
    ++out.windows;
  }

  std::vector<LayerDamage> layers() const { return comparer_.means(); }

 private:
  Status pass(inference::SequenceState& sequence, inference::SequenceState* base_sequence,
              std::span<const int32_t> part, bool scored, int64_t at,
              const std::vector<int32_t>& tokens) {
    const auto wanted = scored ? inference::WantLogits::kAll : inference::WantLogits::kNone;
    ops::Rows base;
    if (base_sequence != nullptr) {  // first: the model's pass is compared with what it leaves
      const inference::StepInput input{base_sequence, part, wanted};
      CUTAWAY_ASSIGN(base, baseline_->runner.step(std::span(&input, 1)));
    }
    const inference::StepInput input{&sequence, part, wanted};
    CUTAWAY_ASSIGN(const ops::Rows logits, model_.runner.step(std::span(&input, 1)));
    if (!scored) return {};
    // The last token of a window predicts nothing that is there.
    const int64_t rows = std::min<int64_t>(logits.n, plan_.window - 1 - at);
    const size_t first = scores_.size();
    scores_.resize(first + static_cast<size_t>(rows));
    nexts_.resize(scores_.size());
    pool_.parallel_for(static_cast<size_t>(rows), [&](size_t i) noexcept {
      const auto row = static_cast<int64_t>(i);
      const int32_t next = tokens[static_cast<size_t>(at) + i + 1];
      nexts_[first + i] = next;
      const std::span x(logits.row(row), static_cast<size_t>(logits.d));
      const std::span<const float> b =
          base.data == nullptr ? std::span<const float>()
                               : std::span<const float>(base.row(row), static_cast<size_t>(base.d));
      score_row(x, b, next, scores_[first + i]);
    });
    for (size_t i = first; i < scores_.size(); ++i) {
      if (!scores_[i].damaged && !scores_[i].baseline_damaged) continue;
      const Evaluated& at_fault = scores_[i].damaged ? model_ : *baseline_;
      return Error{
          ErrorCode::kInvalidFile,
          fmt::format("{}: the logits after position {} of a window are not finite",
                      at_fault.runner.model().file().path, at + static_cast<int64_t>(i - first)),
          "logits"};
    }
    return {};
  }

  const Evaluated& model_;
  const Evaluated* baseline_;
  ThreadPool& pool_;
  const EvaluationPlan& plan_;
  StreamKeeper keeper_;
  StreamComparer comparer_;
  std::vector<RowScore> scores_;  // of the window
  std::vector<int32_t> nexts_;    // the token that each of them predicts
};

}  // namespace

Result<EvaluationOutcome> evaluate(const Evaluated& model, const Evaluated* baseline,
                                   ThreadPool& pool, const EvaluationPlan& plan,
                                   const EvaluationProgress& progress) {
  CUTAWAY_SPAN(span, "inspect::evaluate", "tokens", plan.tokens, "window", plan.window, "warmup",
               plan.warmup, "baseline", baseline != nullptr, "layers", plan.layers);
  CUTAWAY_CHECK(plan.window >= 2 && plan.warmup >= 0 && plan.warmup <= plan.window - 2 &&
                plan.chunk >= 1);
  EvaluationOutcome out;
  Evaluation evaluation(model, baseline, pool, plan);
  const int64_t total = plan.windows() * plan.window;
  const auto go_on = [&](int64_t done) { return !progress || progress(done, total); };
  for (int64_t w = 0; w < plan.windows(); ++w) {
    CUTAWAY_ASSIGN(const bool whole, evaluation.window(w, go_on));
    out.cancelled = !whole;
    if (!whole) break;
    evaluation.accept(out);
  }
  if (baseline != nullptr && plan.layers) out.layers = evaluation.layers();
  CUTAWAY_OUT(span, "windows", out.windows, "scored", out.nll.size(), "cancelled", out.cancelled);
  return out;
}

Mean mean_of(std::span<const double> values) {
  CUTAWAY_SPAN(span, "inspect::mean_of", "n", values.size());
  if (values.empty()) return {};
  double sum = 0, squares = 0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  const auto n = static_cast<double>(values.size());
  Mean out{sum / n, 0};
  const double variance = squares / n - out.value * out.value;
  if (values.size() > 1 && variance > 0) out.standard_error = std::sqrt(variance / (n - 1));
  CUTAWAY_OUT(span, "mean", out.value, "standard_error", out.standard_error);
  return out;
}

double quantile(std::vector<double>& values, double fraction) {
  CUTAWAY_SPAN(span, "inspect::quantile", "n", values.size(), "fraction", fraction);
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = fraction * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double rest = at - static_cast<double>(below);
  const double out = values[below] + rest * (values[above] - values[below]);
  CUTAWAY_OUT(span, "value", out);
  return out;
}

}  // namespace cutaway::inspect
