#include "inspect/lens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/clock.h"
#include "sampling/lanes.h"
#include "trace/probe.h"
#include "trace/trace.h"

namespace cutaway::inspect {
namespace {

using trace::Site;

// Logits that are held at a time: of one tile of rows, and of the last layer at the positions that
// the tile is of.
constexpr int64_t kTileBytes = int64_t{48} << 20, kFinalBytes = int64_t{24} << 20;
constexpr int64_t kMostRows = 256, kMostPositions = 64;

int64_t rows_within(int64_t bytes, int64_t vocab, int64_t least, int64_t most) {
  return std::clamp(bytes / (vocab * static_cast<int64_t>(sizeof(float))), least, most);
}

// Keeps the streams of one pass, [layer of the plan][position]. The last layer's is not needed: its
// logits are those of the pass.
class Streams final : public trace::Probe {
 public:
  Streams(const std::vector<int>& layers, int n_layers) : layers_(layers), n_layers_(n_layers) {
    streams_.resize(layers.size());
  }

  bool wants(Site site, int layer) const override { return index(site, layer).has_value(); }

  void observe(const trace::TapEvent& event) override {
    const std::optional<size_t> i = index(event.site, event.layer);
    if (!i) return;
    const int64_t d = event.values.row_elements();
    streams_[*i].resize(static_cast<size_t>(event.values.rows() * d));
    for (int64_t r = 0; r < event.values.rows(); ++r) {
      std::copy_n(event.values.row(r), d, streams_[*i].begin() + r * d);
    }
  }

  const float* row(size_t index, int64_t position, int64_t d) const {
    return streams_[index].data() + position * d;
  }

 private:
  std::optional<size_t> index(Site site, int layer) const {
    const int stream = site == Site::kResidPost                ? layer
                       : site == Site::kResidPre && layer == 0 ? -1
                                                               : n_layers_;
    if (stream >= n_layers_ - 1) return std::nullopt;
    const auto it = std::lower_bound(layers_.begin(), layers_.end(), stream);
    if (it == layers_.end() || *it != stream) return std::nullopt;
    return static_cast<size_t>(it - layers_.begin());
  }

  const std::vector<int>& layers_;
  int n_layers_;
  std::vector<std::vector<float>> streams_;
};

// The last layer's distribution at one position.
struct Final {
  float* probabilities = nullptr;  // [vocab]
  double total = 0;                // their sum
  double entropy = 0;
  int32_t choice = -1;
};

// Σ p · x over eight lanes, each block of 64 in f32: p ≥ 0 sums to 1. Where p is 0, x may be −inf.
double expected_logit(const float* p, const float* x, size_t n) noexcept {
  constexpr size_t kLanes = 16, kBlock = 64;
  double out = 0;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    float lanes[kLanes] = {};
    const size_t end = std::min(begin + kBlock, n);
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const float logit = x[i + lane] < -1e30f ? -1e30f : x[i + lane];
        lanes[lane] += p[i + lane] * logit;
      }
    }
    for (; i < end; ++i) lanes[0] += p[i] * (x[i] < -1e30f ? -1e30f : x[i]);
    double block = 0;
    for (const float lane : lanes) block += static_cast<double>(lane);
    out += block;
  }
  return out;
}

// Loops that compilers turn into wide registers.
int32_t count_from(const float* x, size_t n, float least) noexcept {
  int32_t out = 0;
  for (size_t i = 0; i < n; ++i) out += x[i] >= least ? 1 : 0;
  return out;
}
int32_t count_above(const float* x, size_t n, float most) noexcept {
  int32_t out = 0;
  for (size_t i = 0; i < n; ++i) out += x[i] > most ? 1 : 0;
  return out;
}

// What one row of logits says. Everything is allocated by whoever makes it.
class RowReader {
 public:
  // `top` holds as many as are wanted, and of the vocabulary at most all.
  RowReader(std::span<const float> logits, std::vector<float>& block_max)
      : logits_(logits), block_max_(block_max), scan_(sampling::scan_logits(logits, &block_max)) {}

  bool damaged() const { return scan_.damaged || scan_.argmax < 0; }
  int32_t argmax() const { return scan_.argmax; }

  void normalise() {
    const sampling::ExpSums sums = sampling::exp_sums(logits_, scan_.max, 1);
    sum_ = sums.sum;
    log_sum_ = std::log(sum_);
    entropy_ = std::max(0.0, log_sum_ - sums.weighted / sums.sum);
  }
  double entropy() const { return entropy_; }
  // ln Σ exp(logit).
  double log_total() const { return static_cast<double>(scan_.max) + log_sum_; }
  double probability(float logit) const {
    return std::exp(static_cast<double>(logit) - static_cast<double>(scan_.max) - log_sum_);
  }

  // The same, by the arithmetic of the sum: what a loop over the vocabulary takes.
  double share(float logit) const { return sampling::exp_weight(logit, scan_.max, 1) / sum_; }

  // The largest, by logit, then id: fills `top` and cuts it to what there is.
  void largest(std::vector<LensToken>& top) const {
    size_t found = 0;
    const size_t wanted = top.size();
    if (wanted == 0) return;
    for (size_t block = 0; block < block_max_.size(); ++block) {
      if (found == wanted && block_max_[block] <= top.back().logit) continue;
      const size_t end = std::min(logits_.size(), (block + 1) * sampling::kScanBlock);
      for (size_t i = block * sampling::kScanBlock; i < end; ++i) {
        const float logit = logits_[i];
        if (std::isinf(logit) || (found == wanted && logit <= top.back().logit)) continue;
        size_t place = found < wanted ? found++ : found - 1;
        for (; place > 0 && top[place - 1].logit < logit; --place) top[place] = top[place - 1];
        top[place] = {static_cast<int32_t>(i), logit, 0};
      }
    }
    top.resize(found);
    for (LensToken& token : top) token.probability = static_cast<float>(probability(token.logit));
  }

  LensStanding standing(int32_t id) const {
    const auto at = static_cast<size_t>(id);
    const float logit = logits_[at];
    int32_t rank = 0;
    for (size_t block = 0; block < block_max_.size(); ++block) {
      if (block_max_[block] < logit) continue;
      const size_t begin = block * sampling::kScanBlock;
      const size_t end = std::min(logits_.size(), begin + sampling::kScanBlock);
      // Equal logits stand in the order of their ids.
      const size_t middle = std::clamp(at, begin, end);
      rank += count_from(logits_.data() + begin, middle - begin, logit);
      rank += count_above(logits_.data() + middle, end - middle, logit);
    }
    return {rank, static_cast<float>(probability(logit))};
  }

 private:
  std::span<const float> logits_;
  std::vector<float>& block_max_;
  sampling::LogitScan scan_;
  double sum_ = 0, log_sum_ = 0, entropy_ = 0;
};

class Lens {
 public:
  Lens(inference::Runner& runner, kv::PagePool& pages, ThreadPool& pool, const LensPlan& plan)
      : runner_(runner),
        pool_(pool),
        plan_(plan),
        n_layers_(static_cast<int>(runner.model().shape().n_layers)),
        vocab_(static_cast<size_t>(plan.vocab)),
        streams_(plan.layers, n_layers_),
        sequence_(pages) {
    const int64_t head = runner.model().shape().vocab;
    chunk_ = rows_within(kFinalBytes, head, 8, kMostPositions);
    tile_ = rows_within(kTileBytes, head, 16, kMostRows);
    block_max_.resize(static_cast<size_t>(std::max(chunk_, tile_)));
    const size_t blocks = (vocab_ + sampling::kScanBlock - 1) / sampling::kScanBlock;
    for (std::vector<float>& row : block_max_) row.resize(blocks);
    out_.positions = static_cast<int64_t>(plan.tokens.size()) - plan.first;
    out_.choices.resize(static_cast<size_t>(out_.positions));
    out_.cells.resize(plan.layers.size() * static_cast<size_t>(out_.positions));
    for (LensCell& cell : out_.cells) {
      cell.top.resize(std::min(static_cast<size_t>(plan.top), vocab_));
    }
  }
  ~Lens() { runner_.set_probes({}); }
  Lens(const Lens&) = delete;
  Lens& operator=(const Lens&) = delete;

  Result<LensOutcome> run() {
    const auto n = static_cast<int64_t>(plan_.tokens.size());
    for (int64_t at = 0; at < plan_.first;) {
      const int64_t count = std::min(plan_.chunk, plan_.first - at);
      CUTAWAY_TRY(step(at, count, inference::WantLogits::kNone));
      at += count;
    }
    runner_.set_probes({&streams_});
    for (int64_t at = plan_.first; at < n;) {
      const int64_t count = std::min(chunk_, n - at);
      CUTAWAY_ASSIGN(const ops::Rows logits, step(at, count, inference::WantLogits::kAll));
      CUTAWAY_TRY(take_final(at, logits));
      CUTAWAY_TRY(read_layers(at, count));
      at += count;
    }
    return std::move(out_);
  }

 private:
  Result<ops::Rows> step(int64_t at, int64_t count, inference::WantLogits wanted) {
    CUTAWAY_TRY(check_cancelled());
    const int64_t start = now_ns();
    const inference::StepInput input{
        &sequence_, plan_.tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(count)),
        wanted};
    CUTAWAY_ASSIGN(const ops::Rows rows, runner_.step(std::span(&input, 1)));
    out_.forward_ns += now_ns() - start;
    return rows;
  }

  Status check_cancelled() const {
    if (plan_.cancelled && plan_.cancelled()) {
      return Error{ErrorCode::kCancelled, "the lens was cancelled"};
    }
    return {};
  }

  LensCell& cell(size_t layer, int64_t position) {
    return out_.cells[layer * static_cast<size_t>(out_.positions) +
                      static_cast<size_t>(position - plan_.first)];
  }

  // What a row of logits, whose maxima go to block_max_[slot], says of one layer and position.
  // False: they are not finite.
  bool read(std::span<const float> logits, size_t slot, int64_t position, const Final& last,
            LensCell& out) noexcept {
    RowReader row(logits, block_max_[slot]);
    if (row.damaged()) return false;
    row.normalise();
    out.entropy = static_cast<float>(row.entropy());
    row.largest(out.top);
    out.last = row.standing(last.choice);
    const auto next = static_cast<size_t>(position) + 1;
    const int32_t came = next < plan_.tokens.size() ? plan_.tokens[next] : -1;
    if (came >= 0 && came < plan_.vocab) out.next = row.standing(came);
    const double expected = expected_logit(last.probabilities, logits.data(), vocab_) / last.total;
    out.kl = static_cast<float>(std::max(0.0, row.log_total() - expected - last.entropy));
    return true;
  }

  // The last layer's distribution at the positions of a pass, and its cells.
  Status take_final(int64_t at, const ops::Rows& logits) {
    const int64_t start = now_ns();
    const bool shown = !plan_.layers.empty() && plan_.layers.back() == n_layers_ - 1;
    final_.resize(static_cast<size_t>(logits.n));
    probabilities_.resize(static_cast<size_t>(logits.n) * vocab_);
    std::vector<uint8_t> good(static_cast<size_t>(logits.n));
    pool_.parallel_for(good.size(), [&](size_t i) noexcept {
      const std::span<const float> row(logits.row(static_cast<int64_t>(i)), vocab_);
      RowReader reader(row, block_max_[i]);
      if (reader.damaged()) return;
      reader.normalise();
      Final& last = final_[i];
      last = {probabilities_.data() + i * vocab_, 0, reader.entropy(), reader.argmax()};
      for (size_t v = 0; v < vocab_; ++v) {
        last.probabilities[v] = static_cast<float>(reader.share(row[v]));
        last.total += static_cast<double>(last.probabilities[v]);
      }
      const int64_t position = at + static_cast<int64_t>(i);
      out_.choices[static_cast<size_t>(position - plan_.first)] = last.choice;
      good[i] = 1;
      if (!shown) return;
      LensCell& own = cell(plan_.layers.size() - 1, position);
      good[i] = read(row, i, position, last, own);
      own.kl = 0;  // from itself
    });
    out_.score_ns += now_ns() - start;
    for (size_t i = 0; i < good.size(); ++i) {
      if (good[i] == 0) return not_finite(n_layers_ - 1, at + static_cast<int64_t>(i));
    }
    return {};
  }

  // All layers but the last at `count` positions from `at` on, many rows at a time.
  Status read_layers(int64_t at, int64_t count) {
    const int64_t d = runner_.model().shape().d_model;
    size_t layers = plan_.layers.size();
    if (layers > 0 && plan_.layers.back() == n_layers_ - 1) --layers;
    const int64_t all = static_cast<int64_t>(layers) * count;
    for (int64_t begin = 0; begin < all; begin += tile_) {
      CUTAWAY_TRY(check_cancelled());
      const int64_t rows = std::min(tile_, all - begin);
      rows_.resize(static_cast<size_t>(rows * d));
      positions_.resize(static_cast<size_t>(rows));
      for (int64_t r = 0; r < rows; ++r) {
        const auto layer = static_cast<size_t>((begin + r) / count);
        std::copy_n(streams_.row(layer, (begin + r) % count, d), d, rows_.begin() + r * d);
        positions_[static_cast<size_t>(r)] = at + (begin + r) % count;
      }
      const int64_t start = now_ns();
      const ops::Rows logits = runner_.unembed({rows_.data(), rows, d}, positions_, plan_.editors);
      const int64_t unembedded = now_ns();
      std::vector<uint8_t> good(static_cast<size_t>(rows));
      pool_.parallel_for(good.size(), [&](size_t i) noexcept {
        const int64_t index = begin + static_cast<int64_t>(i);
        const auto layer = static_cast<size_t>(index / count);
        const int64_t place = index % count;
        good[i] = read({logits.row(static_cast<int64_t>(i)), vocab_}, i, at + place,
                       final_[static_cast<size_t>(place)], cell(layer, at + place));
      });
      out_.unembed_ns += unembedded - start;
      out_.score_ns += now_ns() - unembedded;
      for (size_t i = 0; i < good.size(); ++i) {
        const int64_t index = begin + static_cast<int64_t>(i);
        if (good[i] == 0) {
          return not_finite(plan_.layers[static_cast<size_t>(index / count)], at + index % count);
        }
      }
    }
    return {};
  }

  Error not_finite(int layer, int64_t position) const {
    return {ErrorCode::kInvalidFile,
            fmt::format("{}: the logits of layer {} at position {} are not finite",
                        runner_.model().file().path, layer, position),
            "logits"};
  }

  inference::Runner& runner_;
  ThreadPool& pool_;
  const LensPlan& plan_;
  int n_layers_;
  size_t vocab_;
  int64_t chunk_, tile_;
  Streams streams_;
  inference::SequenceState sequence_;
  std::vector<std::vector<float>> block_max_;  // [row of a tile]
  std::vector<Final> final_;                   // [position of a pass]
  std::vector<float> probabilities_;           // {positions of a pass, vocab}
  std::vector<float> rows_;                    // {rows of a tile, d_model}
  std::vector<int64_t> positions_;             // [row of a tile]
  LensOutcome out_;
};

}  // namespace

Result<LensOutcome> lens(inference::Runner& runner, kv::PagePool& pages, ThreadPool& pool,
                         const LensPlan& plan) {
  CUTAWAY_SPAN(span, "inspect::lens", "tokens", plan.tokens, "layers", plan.layers.size(), "first",
               plan.first, "top", plan.top);
  const arch::ModelShape& shape = runner.model().shape();
  CUTAWAY_CHECK(plan.first >= 0 && plan.first < static_cast<int64_t>(plan.tokens.size()));
  CUTAWAY_CHECK(plan.vocab > 0 && plan.vocab <= shape.vocab && plan.top >= 0 && plan.chunk > 0);
  CUTAWAY_CHECK(std::is_sorted(plan.layers.begin(), plan.layers.end()));
  CUTAWAY_CHECK(plan.layers.empty() || (plan.layers.front() >= -1 &&
                                        plan.layers.back() < static_cast<int>(shape.n_layers)));
  Lens reader(runner, pages, pool, plan);
  CUTAWAY_ASSIGN(LensOutcome out, reader.run());
  CUTAWAY_OUT(span, "cells", out.cells.size(), "forward_ns", out.forward_ns, "unembed_ns",
              out.unembed_ns, "score_ns", out.score_ns);
  return out;
}

}  // namespace cutaway::inspect
