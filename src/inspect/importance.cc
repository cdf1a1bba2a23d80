#include "inspect/importance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "trace/trace.h"

namespace cutaway::inspect {
namespace {

// Adds up the squares of every product's input, by the tensor of the file that the weight is of.
class SquareSums final : public ops::ProductWatcher {
 public:
  explicit SquareSums(const model::LoadedModel& model) : model_(model) {}

  void product(const kernels::PackedMatrix& weight, const ops::Rows& x) override {
    const model::MatrixSource source = model_.source_of(weight);
    if (source.tensor == nullptr || !source.tensor->name.starts_with("blk.")) return;
    const Shape& shape = source.tensor->shape;
    Sums& sums = sums_[source.tensor->name];
    const auto matrices = static_cast<size_t>(source.expert < 0 ? 1 : shape[0]);
    sums.counts.resize(matrices);
    sums.squares.resize(matrices * static_cast<size_t>(x.d));
    const auto m = static_cast<size_t>(std::max<int64_t>(source.expert, 0));
    sums.counts[m] += static_cast<double>(x.n);
    double* to = sums.squares.data() + m * static_cast<size_t>(x.d);
    for (int64_t i = 0; i < x.n; ++i) {
      const float* row = x.row(i);
      for (int64_t k = 0; k < x.d; ++k) {
        to[k] += static_cast<double>(row[k]) * static_cast<double>(row[k]);
      }
    }
  }

  Result<formats::ImportanceMatrix> result() const {
    formats::ImportanceMatrix out;
    for (const auto& [name, sums] : sums_) {
      formats::Importance& entry = out.tensors[name];
      entry.matrices = static_cast<int64_t>(sums.counts.size());
      const size_t columns = sums.squares.size() / sums.counts.size();
      for (size_t i = 0; i < sums.squares.size(); ++i) {
        const double count = sums.counts[i / columns];
        entry.values.push_back(static_cast<float>(count > 0 ? sums.squares[i] / count : 0));
        if (std::isfinite(entry.values.back())) continue;
        return Error{ErrorCode::kInvalidFile,
                     fmt::format("{}: what {} reads is not finite in column {}", model_.file().path,
                                 name, i % columns),
                     name};
      }
      entry.counts.assign(sums.counts.begin(), sums.counts.end());
    }
    return out;
  }

 private:
  struct Sums {
    std::vector<double> squares, counts;
  };
  const model::LoadedModel& model_;
  std::map<std::string, Sums> sums_;
};

// Takes the watcher off again, whatever happens.
class Watching {
 public:
  Watching(inference::Runner& runner, ops::ProductWatcher& watcher) : runner_(runner) {
    runner_.set_watcher(&watcher);
  }
  ~Watching() { runner_.set_watcher(nullptr); }
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;

 private:
  inference::Runner& runner_;
};

}  // namespace

Result<formats::ImportanceMatrix> measure_importance(
    inference::Runner& runner, kv::PagePool& pages, const ImportancePlan& plan,
    const std::function<bool(int64_t, int64_t)>& progress) {
  CUTAWAY_SPAN(span, "inspect::measure_importance", "tokens", plan.tokens, "window", plan.window);
  CUTAWAY_CHECK(plan.window >= 1 && plan.chunk >= 1);
  SquareSums sums(runner.model());
  const Watching watching(runner, sums);
  const int64_t total = plan.windows() * plan.window;
  for (int64_t w = 0; w < plan.windows(); ++w) {
    std::vector<int32_t> tokens(plan.tokens.begin() + w * plan.window,
                                plan.tokens.begin() + (w + 1) * plan.window);
    if (plan.bos >= 0) tokens[0] = plan.bos;
    inference::SequenceState sequence(pages);
    for (int64_t at = 0; at < plan.window; at += plan.chunk) {
      const int64_t n = std::min(plan.chunk, plan.window - at);
      const inference::StepInput input{
          &sequence, std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(n)),
          inference::WantLogits::kNone};
      CUTAWAY_TRY(runner.step(std::span(&input, 1)));
      if (progress && !progress(w * plan.window + at + n, total)) {
        return Error{ErrorCode::kCancelled, "measuring was cancelled"};
      }
    }
  }
  CUTAWAY_ASSIGN(formats::ImportanceMatrix out, sums.result());
  out.chunks = plan.windows();
  out.chunk_size = plan.window;
  CUTAWAY_OUT(span, "tensors", out.tensors.size());
  return out;
}

}  // namespace cutaway::inspect
