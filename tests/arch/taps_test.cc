// Every tap of the table, for every architecture: there, in the table's shape, and the same values
// however the tokens are fed.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "arch/architecture.h"
#include "inference/runner.h"
#include "tests/support/tiny_cases.h"

namespace cutaway {
namespace {

using trace::Site;

using Case = testing::TinyCase;

constexpr int64_t kTokens = 90;  // more than a tile of keys

bool is_map(Site site) { return site == Site::kAttnScores || site == Site::kPattern; }

// What a position holds, as the table in docs/capture.md has it; empty: the model has no such tap.
std::vector<int64_t> per_position(Site site, const arch::ModelShape& m) {
  switch (site) {
    case Site::kTokens:
    case Site::kLn1Scale:
    case Site::kLn2Scale:
    case Site::kLnFinalScale:
      return {1};
    case Site::kQ:
    case Site::kRotQ:
    case Site::kZ:
      return {m.n_heads, m.d_head};
    case Site::kK:
    case Site::kRotK:
    case Site::kV:
      return {m.n_kv_heads, m.d_head};
    case Site::kResult:
      return {m.n_heads, m.d_model};
    case Site::kRouterLogits:
      return m.n_experts > 0 ? std::vector{m.n_experts} : std::vector<int64_t>{};
    case Site::kExpertIndices:
    case Site::kExpertWeights:
      return m.n_experts > 0 ? std::vector{m.n_experts_used} : std::vector<int64_t>{};
    case Site::kMlpPreLinear:
      if (!m.gated_mlp) return {};
      [[fallthrough]];
    case Site::kMlpPre:
    case Site::kMlpPost:
      return m.n_experts > 0 ? std::vector{m.n_experts_used, m.d_mlp} : std::vector{m.d_mlp};
    case Site::kPosEmbed:
      return m.learned_positions ? std::vector{m.d_model} : std::vector<int64_t>{};
    case Site::kLogits:
      return {m.vocab};
    default:
      return {m.d_model};
  }
}

using Kept = std::map<std::pair<Site, int>, std::vector<float>>;

// Keeps everything in the order of positions; maps as {head, q, k}, keys that lie ahead NaN.
class KeepAll final : public trace::Probe {
 public:
  explicit KeepAll(const arch::ModelShape& shape) : m_(shape) {}
  bool wants(Site, int) const override { return true; }
  void observe(const trace::TapEvent& event) override {
    std::vector<float>& to = kept[{event.site, event.layer}];
    const Shape& shape = event.values.shape;
    if (is_map(event.site)) {
      ASSERT_EQ(shape.rank(), 3) << trace::tap_name(event.site, event.layer);
      ASSERT_EQ(shape[0], m_.n_heads);
      ASSERT_EQ(shape[2], event.first_position + shape[1]);
      to.resize(static_cast<size_t>(m_.n_heads * kTokens * kTokens),
                std::numeric_limits<float>::quiet_NaN());
      for (int64_t h = 0; h < shape[0]; ++h) {
        for (int64_t q = 0; q < shape[1]; ++q) {
          std::copy_n(event.values.data + (h * shape[1] + q) * shape[2], shape[2],
                      to.data() + (h * kTokens + event.first_position + q) * kTokens);
        }
      }
      return;
    }
    const std::vector<int64_t> inner = per_position(event.site, m_);
    ASSERT_FALSE(inner.empty()) << trace::tap_name(event.site, event.layer);
    std::vector<int64_t> expected{shape[0]};
    expected.insert(expected.end(), inner.begin(), inner.end());
    std::vector<int64_t> given;
    for (int i = 0; i < shape.rank(); ++i) given.push_back(shape[i]);
    ASSERT_EQ(given, expected) << trace::tap_name(event.site, event.layer);
    ASSERT_EQ(static_cast<int64_t>(to.size()), event.first_position * event.values.row_elements());
    for (int64_t i = 0; i < shape[0]; ++i) {
      to.insert(to.end(), event.values.row(i), event.values.row(i) + event.values.row_elements());
    }
  }
  Kept kept;

 private:
  const arch::ModelShape& m_;
};

class EveryTap : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    auto selection = kernels::select_table("");
    ASSERT_TRUE(selection.ok());
    table_ = selection->table;
    std::string error;
    model_ = testing::tiny_model(*GetParam().architecture, GetParam().config, GetParam().type,
                                 pool_, true, &error);
    ASSERT_NE(model_, nullptr) << error;
  }

  Kept taps(size_t chunk, bool precise = false) {
    const arch::ModelShape& m = model_->shape();
    kv::PagePool pages({m.n_layers, m.n_kv_heads, m.d_head, m.d_head, kernels::KvType::kF16}, 8);
    inference::Runner runner(*model_, *table_, pool_, precise);
    KeepAll probe(m);
    runner.set_probes({&probe});
    inference::SequenceState sequence(pages);
    const std::vector<int32_t> tokens = testing::tiny_prompt(kTokens);
    for (size_t at = 0; at < tokens.size(); at += chunk) {
      const inference::StepInput input{
          &sequence, std::span(tokens).subspan(at, std::min(chunk, tokens.size() - at)),
          inference::WantLogits::kAll};
      auto rows = runner.step(std::span(&input, 1));
      EXPECT_TRUE(rows.ok()) << rows.error().message;
    }
    return std::move(probe.kept);
  }

  ThreadPool pool_{2};
  const kernels::KernelTable* table_ = nullptr;
  std::shared_ptr<const model::LoadedModel> model_;
};

TEST_P(EveryTap, FiresInItsShapeWhereTheModelHasIt) {
  const Kept kept = taps(kTokens);
  const arch::ModelShape& m = model_->shape();
  for (int s = 0; s < trace::kSiteCount; ++s) {
    const auto site = static_cast<Site>(s);
    const bool fires = is_map(site) || !per_position(site, m).empty();
    const bool per_layer = trace::tap_name(site, 0) != trace::tap_name(site, 1);
    const int end = per_layer ? static_cast<int>(m.n_layers) : 0;
    for (int layer = per_layer ? 0 : -1; layer < end; ++layer) {
      const auto it = kept.find({site, layer});
      ASSERT_EQ(it != kept.end(), fires) << trace::tap_name(site, layer);
      if (!fires || is_map(site)) continue;
      int64_t elements = kTokens;
      for (const int64_t d : per_position(site, m)) elements *= d;
      EXPECT_EQ(static_cast<int64_t>(it->second.size()), elements) << trace::tap_name(site, layer);
    }
  }
}

TEST_P(EveryTap, IsTheSameBitForBitInPrefillChunksAndDecode) {
  const Kept whole = taps(kTokens);
  for (const size_t chunk : {1u, 7u, 64u}) {
    const Kept parts = taps(chunk);
    ASSERT_EQ(parts.size(), whole.size());
    for (const auto& [tap, values] : whole) {
      const std::vector<float>& other = parts.at(tap);
      ASSERT_EQ(values.size(), other.size());
      int64_t differ = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        // Keys that a chunk does not have yet: never seen in either.
        const bool ahead = is_map(tap.first) && (std::isnan(other[i]) || std::isnan(values[i]));
        const size_t q = i / kTokens % kTokens, k = i % kTokens;
        if (ahead ? k <= q : std::memcmp(&values[i], &other[i], sizeof(float)) != 0) ++differ;
      }
      EXPECT_EQ(differ, 0) << trace::tap_name(tap.first, tap.second) << ", chunks of " << chunk;
    }
  }
}

TEST_P(EveryTap, PatternsSumToOneAndAreTheSoftmaxOfTheScores) {
  const Kept kept = taps(16);
  for (int layer = 0; layer < static_cast<int>(model_->shape().n_layers); ++layer) {
    const std::vector<float>& pattern = kept.at({Site::kPattern, layer});
    const std::vector<float>& scores = kept.at({Site::kAttnScores, layer});
    for (size_t row = 0; row < pattern.size() / kTokens; ++row) {
      const size_t q = row % kTokens;
      double sum = 0, denominator = 0;
      for (size_t k = 0; k <= q; ++k) {
        sum += pattern[row * kTokens + k];
        denominator += std::exp(static_cast<double>(scores[row * kTokens + k]));
      }
      ASSERT_NEAR(sum, 1, 1e-6);
      for (size_t k = 0; k <= q; ++k) {
        const double expected =
            std::exp(static_cast<double>(scores[row * kTokens + k])) / denominator;
        ASSERT_NEAR(pattern[row * kTokens + k], expected, 1e-6) << "row " << row << ", key " << k;
      }
    }
  }
}

// 1 − cos of the angle between two vectors.
template <typename A, typename B>
double angle(int64_t n, const A& a, const B& b) {
  double dot = 0, aa = 0, bb = 0;
  for (int64_t i = 0; i < n; ++i) {
    dot += a(i) * b(i), aa += a(i) * a(i), bb += b(i) * b(i);
  }
  return 1 - dot / std::sqrt(aa * bb);
}

// What the heads give adds up to what attention gives. Between the two there may be a bias, the
// same at every position, with a multiplier; or a norm, which multiplies a row by one number and
// its elements by weights.
TEST_P(EveryTap, ResultsOfTheHeadsAddUpToTheOutput) {
  const Kept kept = taps(kTokens, true);
  const arch::ModelShape& m = model_->shape();
  for (int layer = 0; layer < static_cast<int>(m.n_layers); ++layer) {
    const std::vector<float>& result = kept.at({Site::kResult, layer});
    const std::vector<float>& output = kept.at({Site::kAttnOut, layer});
    std::vector<double> sums(output.size());
    for (int64_t p = 0; p < kTokens; ++p) {
      for (int64_t i = 0; i < m.n_heads * m.d_model; ++i) {
        sums[static_cast<size_t>(p * m.d_model + i % m.d_model)] +=
            result[static_cast<size_t>(p * m.n_heads * m.d_model + i)];
      }
    }
    const auto sum = [&](int64_t p, int64_t i) {
      return sums[static_cast<size_t>(p * m.d_model + i)];
    };
    const auto out = [&](int64_t p, int64_t i) {
      return static_cast<double>(output[static_cast<size_t>(p * m.d_model + i)]);
    };
    double with_bias = 0, with_norm = 0;
    for (int64_t p = 1; p < kTokens; ++p) {
      with_bias =
          std::max(with_bias, angle(
                                  m.d_model, [&](int64_t i) { return sum(p, i) - sum(0, i); },
                                  [&](int64_t i) { return out(p, i) - out(0, i); }));
      with_norm =
          std::max(with_norm, angle(
                                  m.d_model, [&](int64_t i) { return sum(p, i) * out(0, i); },
                                  [&](int64_t i) { return out(p, i) * sum(0, i); }));
    }
    EXPECT_LT(std::min(with_bias, with_norm), 1e-6) << "layer " << layer;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryTap,
                         ::testing::ValuesIn(testing::tiny_cases({DType::kF32, DType::kQ4_0})),
                         testing::CaseName());

}  // namespace
}  // namespace cutaway
