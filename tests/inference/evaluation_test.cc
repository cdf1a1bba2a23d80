// Perplexity, agreement, KL divergence and damage by layer against a plain computation in double
// over the same logits and residual streams.

#include "inspect/evaluation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/support/tiny_model.h"

namespace cutaway {
namespace {

using inspect::EvaluationOutcome;
using inspect::EvaluationPlan;

constexpr int64_t kWindow = 12;

class EvaluationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto selection = kernels::select_table("");
    ASSERT_TRUE(selection.ok());
    table_ = selection->table;
    for (int32_t i = 0; i < 3 * kWindow + 5; ++i) tokens_.push_back((i * 53 + 17) % 256);
    // Other weights under each type: two models of one shape that have nothing in common.
    model_ = make(DType::kQ8_0);
    baseline_ = make(DType::kF32);
  }

  struct Side {
    std::shared_ptr<const model::LoadedModel> model;
    std::unique_ptr<kv::PagePool> pages;
    std::unique_ptr<inference::Runner> runner;
  };

  Side make(DType type) {
    Side side;
    std::string error;
    const arch::Architecture& llama = **arch::find_architecture("llama");
    side.model = testing::tiny_model(llama, llama.tiny_configs()[0], type, pool_, false, &error);
    EXPECT_NE(side.model, nullptr) << error;
    const arch::ModelShape& m = side.model->shape();
    side.pages = std::make_unique<kv::PagePool>(
        kv::Geometry{m.n_layers, m.n_kv_heads, m.d_head, m.d_head, kernels::KvType::kF32}, 4);
    side.runner = std::make_unique<inference::Runner>(*side.model, *table_, pool_, false);
    return side;
  }

  EvaluationOutcome run(const EvaluationPlan& plan, bool with_baseline,
                        const inspect::EvaluationProgress& progress = {}) {
    const inspect::Evaluated model{*model_.runner, *model_.pages};
    const inspect::Evaluated baseline{*baseline_.runner, *baseline_.pages};
    auto out = inspect::evaluate(model, with_baseline ? &baseline : nullptr, pool_, plan, progress);
    EXPECT_TRUE(out.ok()) << out.error().message;
    return std::move(*out);
  }

  // Log-probabilities after every token of a window, and its residual streams.
  struct Keep final : trace::Probe {
    bool wants(trace::Site site, int) const override {
      return site == trace::Site::kEmbed || site == trace::Site::kResidPost;
    }
    void observe(const trace::TapEvent& event) override {
      auto& rows = streams[event.site == trace::Site::kEmbed ? -1 : event.layer];
      for (int64_t i = 0; i < event.values.rows(); ++i) {
        const float* row = event.values.row(i);
        rows.emplace_back(row, row + event.values.row_elements());
      }
    }
    std::map<int, std::vector<std::vector<double>>> streams;
  };

  std::vector<std::vector<double>> log_probabilities(Side& side, std::vector<int32_t> window,
                                                     Keep& keep) {
    inference::SequenceState sequence(*side.pages);
    side.runner->set_probes({&keep});
    const inference::StepInput input{&sequence, window, inference::WantLogits::kAll};
    auto rows = side.runner->step(std::span(&input, 1));
    side.runner->set_probes({});
    EXPECT_TRUE(rows.ok());
    std::vector<std::vector<double>> out;
    for (int64_t i = 0; i < rows->n; ++i) {
      std::vector<double> row(rows->row(i), rows->row(i) + rows->d);
      double sum = 0;
      const double most = *std::max_element(row.begin(), row.end());
      for (const double x : row) sum += std::exp(x - most);
      for (double& x : row) x -= most + std::log(sum);
      out.push_back(std::move(row));
    }
    return out;
  }

  ThreadPool pool_{2};
  const kernels::KernelTable* table_ = nullptr;
  std::vector<int32_t> tokens_;
  Side model_, baseline_;
};

int64_t first_of(const std::vector<double>& row) {
  return std::max_element(row.begin(), row.end()) - row.begin();
}

TEST_F(EvaluationTest, EqualsThePlainComputation) {
  for (const int64_t warmup : {int64_t{0}, int64_t{5}, kWindow - 2}) {
    const EvaluationPlan plan{tokens_, kWindow, warmup, -1, 512, true};
    const EvaluationOutcome out = run(plan, true);
    ASSERT_EQ(out.windows, 3);
    ASSERT_EQ(out.nll.size(), static_cast<size_t>(3 * (kWindow - 1 - warmup)));
    std::vector<inspect::LayerDamage> layers;
    size_t at = 0;
    for (int64_t w = 0; w < 3; ++w) {
      const std::vector<int32_t> window(tokens_.begin() + w * kWindow,
                                        tokens_.begin() + (w + 1) * kWindow);
      Keep ours, theirs;
      const auto p = log_probabilities(model_, window, ours);
      const auto b = log_probabilities(baseline_, window, theirs);
      for (int64_t i = warmup; i + 1 < kWindow; ++i, ++at) {
        const auto row = static_cast<size_t>(i);
        const auto next = static_cast<size_t>(window[row + 1]);
        EXPECT_NEAR(out.nll[at], -p[row][next], 1e-9);
        EXPECT_NEAR(out.baseline_nll[at], -b[row][next], 1e-9);
        double kl = 0;
        for (size_t id = 0; id < p[row].size(); ++id) {
          kl += std::exp(b[row][id]) * (b[row][id] - p[row][id]);
        }
        EXPECT_NEAR(out.kl[at], kl, 1e-9);
        EXPECT_EQ(out.agrees[at] == 1, first_of(p[row]) == first_of(b[row]));
        EXPECT_EQ(out.hit[at] == 1, first_of(p[row]) == static_cast<int64_t>(next));
      }
      layers.resize(ours.streams.size());
      for (auto& [layer, rows] : ours.streams) {
        for (size_t i = 0; i < rows.size(); ++i) {
          double xx = 0, bb = 0, xb = 0, dd = 0;
          for (size_t k = 0; k < rows[i].size(); ++k) {
            const double x = rows[i][k], y = theirs.streams[layer][i][k];
            xx += x * x, bb += y * y, xb += x * y, dd += (x - y) * (x - y);
          }
          auto& sum = layers[static_cast<size_t>(layer + 1)];
          sum.relative_error += std::sqrt(dd / bb) / (3 * kWindow);
          sum.cosine += xb / std::sqrt(xx * bb) / (3 * kWindow);
        }
      }
    }
    ASSERT_EQ(out.layers.size(), layers.size());
    EXPECT_GT(out.layers.back().relative_error, 0.1);  // the two are not alike
    for (size_t l = 0; l < layers.size(); ++l) {
      EXPECT_NEAR(out.layers[l].relative_error, layers[l].relative_error, 1e-9) << l;
      EXPECT_NEAR(out.layers[l].cosine, layers[l].cosine, 1e-9) << l;
    }
  }
}

TEST_F(EvaluationTest, ChunksChangeNoBit) {
  const EvaluationOutcome whole = run({tokens_, kWindow, 4, -1, 512, true}, true);
  for (const int64_t chunk : {1, 3, 5}) {
    const EvaluationOutcome parts = run({tokens_, kWindow, 4, -1, chunk, true}, true);
    EXPECT_EQ(parts.nll, whole.nll) << chunk;
    EXPECT_EQ(parts.kl, whole.kl) << chunk;
    for (size_t l = 0; l < whole.layers.size(); ++l) {
      EXPECT_EQ(parts.layers[l].relative_error, whole.layers[l].relative_error) << chunk;
    }
  }
}

TEST_F(EvaluationTest, AModelAgainstItselfLosesNothing) {
  const inspect::Evaluated same{*model_.runner, *model_.pages};
  Side again = make(DType::kQ8_0);
  const inspect::Evaluated other{*again.runner, *again.pages};
  auto out = inspect::evaluate(same, &other, pool_, {tokens_, kWindow, 0, -1, 512, true}, {});
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->nll, out->baseline_nll);
  for (size_t i = 0; i < out->kl.size(); ++i) {
    EXPECT_LT(out->kl[i], 1e-12);
    EXPECT_EQ(out->agrees[i], 1);
  }
  for (const inspect::LayerDamage& layer : out->layers) {
    EXPECT_EQ(layer.relative_error, 0);
    EXPECT_NEAR(layer.cosine, 1, 1e-12);
  }
}

TEST_F(EvaluationTest, BosTakesTheFirstPlaceOfEveryWindow) {
  std::vector<int32_t> replaced = tokens_;
  for (size_t w = 0; w < 3; ++w) replaced[w * static_cast<size_t>(kWindow)] = 200;
  const EvaluationOutcome with_bos = run({tokens_, kWindow, 2, 200, 512, false}, false);
  EXPECT_EQ(with_bos.nll, run({replaced, kWindow, 2, -1, 512, false}, false).nll);
  EXPECT_NE(with_bos.nll, run({tokens_, kWindow, 2, -1, 512, false}, false).nll);
}

TEST_F(EvaluationTest, ACancelledOneKeepsWholeWindows) {
  int64_t last = 0;
  const auto stop = [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 3 * kWindow);
    EXPECT_GT(done, last);
    last = done;
    return done <= kWindow + 4;  // in the second window
  };
  const EvaluationPlan plan{tokens_, kWindow, 0, -1, 3, true};
  const EvaluationOutcome out = run(plan, true, stop);
  EXPECT_TRUE(out.cancelled);
  EXPECT_EQ(out.windows, 1);
  EXPECT_EQ(out.nll.size(), static_cast<size_t>(kWindow - 1));
  const EvaluationPlan one{
      std::span(tokens_).first(static_cast<size_t>(kWindow)), kWindow, 0, -1, 3, true};
  const EvaluationOutcome first = run(one, true);
  EXPECT_EQ(out.nll, first.nll);
  ASSERT_EQ(out.layers.size(), first.layers.size());
  EXPECT_EQ(out.layers[1].relative_error, first.layers[1].relative_error);
}

TEST_F(EvaluationTest, ATokenOutsideTheVocabularyIsAnError) {
  tokens_[kWindow + 3] = 263;
  const inspect::Evaluated model{*model_.runner, *model_.pages};
  auto out = inspect::evaluate(model, nullptr, pool_, {tokens_, kWindow, 0, -1, 512, false}, {});
  ASSERT_FALSE(out.ok());
  EXPECT_NE(out.error().message.find("263"), std::string::npos);
}

TEST(EvaluationNumbers, MeanAndQuantile) {
  const std::vector<double> values = {4, 1, 3, 2};
  const inspect::Mean mean = inspect::mean_of(values);
  EXPECT_DOUBLE_EQ(mean.value, 2.5);
  EXPECT_DOUBLE_EQ(mean.standard_error, std::sqrt(1.25 / 3));
  EXPECT_EQ(inspect::mean_of(std::span(values).first(1)).standard_error, 0);
  std::vector<double> sorted = values;
  EXPECT_DOUBLE_EQ(inspect::quantile(sorted, 0), 1);
  EXPECT_DOUBLE_EQ(inspect::quantile(sorted, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(inspect::quantile(sorted, 0.9), 3.7);
  EXPECT_DOUBLE_EQ(inspect::quantile(sorted, 1), 4);
}

}  // namespace
}  // namespace cutaway
