// The logit lens and the attention view of every architecture: what they say is what the streams,
// the head and the taps give when each is read by itself.

#include "inspect/lens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "inspect/attention.h"
#include "tests/support/tiny_cases.h"

namespace cutaway {
namespace {

using inference::Runner;
using inference::SequenceState;
using inference::StepInput;
using inference::WantLogits;
using trace::Site;

using Case = testing::TinyCase;

// What a pass shows: streams by layer (−1 enters layer 0), and patterns.
class Keeper final : public trace::Probe {
 public:
  bool wants(Site site, int layer) const override {
    return site == Site::kResidPost || site == Site::kPattern ||
           (site == Site::kResidPre && layer == 0);
  }
  void observe(const trace::TapEvent& event) override {
    std::vector<float>& values = event.site == Site::kPattern
                                     ? patterns[event.layer]
                                     : streams[event.site == Site::kResidPre ? -1 : event.layer];
    for (int64_t i = 0; i < event.values.rows(); ++i) {
      values.insert(values.end(), event.values.row(i),
                    event.values.row(i) + event.values.row_elements());
    }
  }
  std::map<int, std::vector<float>> streams, patterns;
};

class EveryView : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int64_t kTokens = 90;  // more than a pass of the lens, and than a tile of keys

  void SetUp() override {
    auto selection = kernels::select_table("");
    ASSERT_TRUE(selection.ok());
    table_ = selection->table;
    std::string error;
    model_ = testing::tiny_model(*GetParam().architecture, GetParam().config, GetParam().type,
                                 pool_, true, &error);
    ASSERT_NE(model_, nullptr) << error;
    const arch::ModelShape& m = model_->shape();
    pages_ = std::make_unique<kv::PagePool>(
        kv::Geometry{m.n_layers, m.n_kv_heads, m.d_head, m.d_head, kernels::KvType::kF16}, 64);
    runner_ = std::make_unique<Runner>(*model_, *table_, pool_, false);
    tokens_ = testing::tiny_prompt(kTokens);
    runner_->set_probes({&keeper_});
    SequenceState sequence(*pages_);
    const StepInput input{&sequence, tokens_, WantLogits::kAll};
    auto rows = runner_->step(std::span(&input, 1));
    ASSERT_TRUE(rows.ok()) << rows.error().message;
    logits_.assign(rows->data, rows->data + rows->n * rows->d);
    runner_->set_probes({});
  }

  inspect::LensPlan plan() const {
    inspect::LensPlan plan;
    plan.tokens = tokens_;
    for (int layer = -1; layer < static_cast<int>(model_->shape().n_layers); ++layer) {
      plan.layers.push_back(layer);
    }
    plan.vocab = model_->tokenizer()->vocab_size();
    plan.top = 4;
    return plan;
  }

  std::vector<float> unembed(int layer, int64_t position) {
    const int64_t d = model_->shape().d_model;
    const ops::Rows row = runner_->unembed({keeper_.streams.at(layer).data() + position * d, 1, d});
    return {row.data, row.data + row.d};
  }

  ThreadPool pool_{2};
  const kernels::KernelTable* table_ = nullptr;
  std::shared_ptr<const model::LoadedModel> model_;
  std::unique_ptr<kv::PagePool> pages_;
  std::unique_ptr<Runner> runner_;
  std::vector<int32_t> tokens_;
  Keeper keeper_;
  std::vector<float> logits_;
};

// ln p of every token, by the definition.
std::vector<double> log_probabilities(std::span<const float> logits) {
  const double max = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - max);
  std::vector<double> out;
  for (const float x : logits) out.push_back(static_cast<double>(x) - max - std::log(sum));
  return out;
}

TEST_P(EveryView, TheLastStreamUnembeddedIsTheLogitsBitForBit) {
  const int last = static_cast<int>(model_->shape().n_layers) - 1;
  const ops::Rows got =
      runner_->unembed({keeper_.streams.at(last).data(), kTokens, model_->shape().d_model});
  ASSERT_EQ(static_cast<size_t>(got.n * got.d), logits_.size());
  EXPECT_EQ(std::memcmp(got.data, logits_.data(), logits_.size() * sizeof(float)), 0);
}

TEST_P(EveryView, EveryCellOfTheLensIsWhatItsStreamSays) {
  const auto made = inspect::lens(*runner_, *pages_, pool_, plan());
  ASSERT_TRUE(made.ok()) << made.error().message;
  const auto vocab = static_cast<size_t>(model_->tokenizer()->vocab_size());
  const auto n_layers = static_cast<int>(model_->shape().n_layers);
  for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{64}, kTokens - 1}) {
    std::vector<float> last = unembed(n_layers - 1, position);
    last.resize(vocab);
    const auto p_last = log_probabilities(last);
    const auto choice =
        static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin());
    EXPECT_EQ(made->choices[static_cast<size_t>(position)], choice);
    for (int layer = -1; layer < n_layers; ++layer) {
      const inspect::LensCell& cell = made->at(layer + 1, position);
      std::vector<float> logits = unembed(layer, position);
      logits.resize(vocab);
      const auto p = log_probabilities(logits);
      std::vector<int32_t> order(vocab);
      for (size_t i = 0; i < vocab; ++i) order[i] = static_cast<int32_t>(i);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
      });
      ASSERT_EQ(cell.top.size(), 4u);
      for (size_t i = 0; i < 4; ++i) {
        const auto id = static_cast<size_t>(order[i]);
        EXPECT_EQ(cell.top[i].id, order[i]) << "layer " << layer << ", place " << i;
        EXPECT_EQ(cell.top[i].logit, logits[id]);
        EXPECT_NEAR(cell.top[i].probability, std::exp(p[id]), 1e-6);
      }
      double entropy = 0, kl = 0;
      for (size_t i = 0; i < vocab; ++i) {
        entropy -= std::exp(p[i]) * p[i];
        kl += std::exp(p_last[i]) * (p_last[i] - p[i]);
      }
      EXPECT_NEAR(cell.entropy, entropy, 1e-5 * std::max(1.0, entropy));
      EXPECT_NEAR(cell.kl, kl, 1e-4 * std::max(1.0, kl)) << "layer " << layer;
      const auto rank = [&](int32_t id) {
        return static_cast<int32_t>(std::find(order.begin(), order.end(), id) - order.begin());
      };
      EXPECT_EQ(cell.last.rank, rank(choice));
      EXPECT_NEAR(cell.last.probability, std::exp(p[static_cast<size_t>(choice)]), 1e-6);
      if (position + 1 == kTokens) {
        EXPECT_EQ(cell.next.rank, -1);
      } else {
        EXPECT_EQ(cell.next.rank, rank(tokens_[static_cast<size_t>(position) + 1]));
      }
    }
    const inspect::LensCell& end = made->at(n_layers, position);
    EXPECT_EQ(end.last.rank, 0);
    EXPECT_EQ(end.top[0].logit, logits_[static_cast<size_t>(position * model_->shape().vocab) +
                                        static_cast<size_t>(choice)]);
  }
}

TEST_P(EveryView, SomeLayersAndTheLastPositionsAreTheSameCells) {
  const auto whole = inspect::lens(*runner_, *pages_, pool_, plan());
  inspect::LensPlan some = plan();
  some.layers = {-1, 0};
  some.first = 70;
  some.chunk = 9;
  const auto part = inspect::lens(*runner_, *pages_, pool_, some);
  ASSERT_TRUE(whole.ok() && part.ok());
  ASSERT_EQ(part->positions, kTokens - 70);
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (int64_t i = 0; i < part->positions; ++i) {
      const inspect::LensCell &a = whole->at(layer, 70 + i), &b = part->at(layer, i);
      EXPECT_EQ(a.kl, b.kl);
      EXPECT_EQ(a.entropy, b.entropy);
      EXPECT_EQ(a.top[0].logit, b.top[0].logit);
      EXPECT_EQ(a.next.rank, b.next.rank);
    }
  }
}

TEST_P(EveryView, TheAttentionIsThatOfThePatternTap) {
  const arch::ModelShape& m = model_->shape();
  inspect::AttentionPlan plan;
  plan.tokens = tokens_;
  for (int layer = 0; layer < static_cast<int>(m.n_layers); ++layer) plan.layers.push_back(layer);
  plan.heads = {static_cast<int>(m.n_heads) - 1};
  plan.chunk = 25;
  const auto made = inspect::attention(*runner_, *pages_, pool_, plan);
  ASSERT_TRUE(made.ok()) << made.error().message;
  ASSERT_EQ(made->heads.size(), static_cast<size_t>(m.n_layers));
  for (const inspect::HeadAttention& head : made->heads) {
    const float* pattern =
        keeper_.patterns.at(head.layer).data() + (m.n_heads - 1) * kTokens * kTokens;
    for (int64_t q = 0; q < kTokens; ++q) {
      const float* row = pattern + q * kTokens;
      double entropy = 0;
      for (int64_t k = 0; k <= q; ++k) {
        const double p = static_cast<double>(row[k]);
        entropy -= p > 0 ? p * std::log(p) : 0;
        EXPECT_EQ(head.pattern[static_cast<size_t>(q * (q + 1) / 2 + k)], f32_to_f16(row[k]));
      }
      EXPECT_NEAR(head.entropy[static_cast<size_t>(q)], entropy, 1e-5);
      const auto best = std::max_element(row, row + q + 1) - row;
      EXPECT_EQ(head.keys[static_cast<size_t>(q * plan.top)], best) << "query " << q;
      EXPECT_EQ(head.weights[static_cast<size_t>(q * plan.top)], row[best]);
    }
  }
}

// More keys than the standing form keeps are found one lot after another; entropies are the same
// without the matrices, and with any number of keys.
TEST_P(EveryView, MoreKeysAreTheLongerListOfTheSame) {
  const arch::ModelShape& m = model_->shape();
  inspect::AttentionPlan plan;
  plan.tokens = tokens_;
  plan.layers = {0};
  for (int head = 0; head < static_cast<int>(m.n_heads); ++head) plan.heads.push_back(head);
  plan.chunk = 31;
  const auto of = [&](int32_t top, bool patterns) {
    plan.top = top;
    plan.patterns = patterns;
    auto made = inspect::attention(*runner_, *pages_, pool_, plan);
    EXPECT_TRUE(made.ok());
    return std::move(made->heads);
  };
  const auto few = of(16, false), many = of(50, true), none = of(0, false);
  for (size_t h = 0; h < plan.heads.size(); ++h) {
    EXPECT_EQ(few[h].entropy, many[h].entropy);
    EXPECT_EQ(few[h].entropy, none[h].entropy);
    const float* pattern =
        keeper_.patterns.at(0).data() + static_cast<int64_t>(h) * kTokens * kTokens;
    for (size_t q = 0; q < static_cast<size_t>(kTokens); ++q) {
      for (size_t i = 0; i < 16; ++i) {
        EXPECT_EQ(few[h].keys[q * 16 + i], many[h].keys[q * 50 + i]);
        EXPECT_EQ(few[h].weights[q * 16 + i], many[h].weights[q * 50 + i]);
      }
      const float* row = pattern + q * static_cast<size_t>(kTokens);
      std::vector<float> sorted(row, row + q + 1);
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      for (size_t i = 0; i < 50; ++i) {
        const float expected = i < sorted.size() ? sorted[i] : 0;
        EXPECT_EQ(many[h].weights[q * 50 + i], expected) << "query " << q << ", place " << i;
        if (expected > 0) EXPECT_EQ(row[many[h].keys[q * 50 + i]], expected);
      }
    }
  }
}

TEST_P(EveryView, ACancelledViewSaysSo) {
  inspect::LensPlan stopped = plan();
  int asked = 0;
  stopped.cancelled = [&] { return ++asked > 2; };
  const auto made = inspect::lens(*runner_, *pages_, pool_, stopped);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kCancelled);
  // What comes during the only pass counts.
  inspect::AttentionPlan attention;
  attention.tokens = tokens_;
  attention.layers = {0};
  attention.heads = {0};
  attention.chunk = std::ssize(tokens_);
  asked = 0;
  attention.cancelled = [&] { return ++asked > 1; };
  const auto read = inspect::attention(*runner_, *pages_, pool_, attention);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kCancelled);
}

INSTANTIATE_TEST_SUITE_P(All, EveryView,
                         ::testing::ValuesIn(testing::tiny_cases({DType::kF32, DType::kQ8_0})),
                         testing::CaseName());

}  // namespace
}  // namespace cutaway
