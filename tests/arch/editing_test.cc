// Editors at every tap of every architecture: one that changes nothing leaves the logits' bits, one
// that changes something is read from there on, and nowhere before.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "arch/architecture.h"
#include "inference/runner.h"
#include "tests/support/tiny_cases.h"

namespace cutaway {
namespace {

using inference::Runner;
using inference::SequenceState;
using inference::StepInput;
using inference::WantLogits;
using trace::Site;

using Case = testing::TinyCase;

// Taps that run a plain form when they are changed.
bool is_plain(Site site) {
  return site == Site::kAttnScores || site == Site::kPattern || site == Site::kResult;
}

// Calls `how` at the chosen sites of every layer.
class TestEditor final : public trace::Editor {
 public:
  using How = std::function<void(const trace::TapEvent&, float*)>;
  TestEditor(std::function<bool(Site)> where, How how)
      : where_(std::move(where)), how_(std::move(how)) {}
  bool changes(Site site, int) const override { return where_(site); }
  void edit(const trace::TapEvent& event, float* values) override {
    fired.insert(event.site);
    how_(event, values);
  }
  std::set<Site> fired;

 private:
  std::function<bool(Site)> where_;
  How how_;
};

void nothing(const trace::TapEvent&, float*) {}

constexpr int64_t kFrom = 40;  // of the position from which on disturb() changes values

void disturb(const trace::TapEvent& event, float* values) {
  const Shape& shape = event.values.shape;
  const bool map = event.site == Site::kAttnScores || event.site == Site::kPattern;
  const int64_t rows = map ? shape[1] : shape[0], heads = map ? shape[0] : 1;
  const int64_t width = shape.elements() / rows / heads;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t r = 0; r < rows; ++r) {
      if (event.first_position + r < kFrom) continue;
      float* row = values + (h * rows + r) * width;
      for (int64_t j = 0; j < width; ++j) row[j] = -1.5f * row[j] + 0.3f * float(j % 5) + 0.1f;
    }
  }
}

class EditedArchitecture : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { load(2); }

  void load(int threads) {
    table_ = kernels::select_table("").value().table;
    pool_ = std::make_unique<ThreadPool>(threads);
    std::string error;
    model_ = testing::tiny_model(*GetParam().architecture, GetParam().config, GetParam().type,
                                 *pool_, GetParam().type != DType::kF16, &error);
    ASSERT_NE(model_, nullptr) << error;
  }

  std::vector<float> logits(size_t n, size_t chunk, std::vector<trace::Editor*> editors,
                            bool precise = false, std::vector<trace::Probe*> probes = {}) {
    const std::vector<int32_t> tokens = testing::tiny_prompt(static_cast<int64_t>(n));
    const arch::ModelShape& m = model_->shape();
    kv::PagePool pages({m.n_layers, m.n_kv_heads, m.d_head, m.d_head,
                        precise ? kernels::KvType::kF32 : kernels::KvType::kF16},
                       8);
    Runner runner(*model_, *table_, *pool_, precise);
    runner.set_editors(std::move(editors));
    runner.set_probes(std::move(probes));
    SequenceState sequence(pages);
    std::vector<float> out;
    for (size_t at = 0; at < n; at += chunk) {
      const StepInput input{&sequence, std::span(tokens).subspan(at, std::min(chunk, n - at)),
                            WantLogits::kAll};
      auto rows = runner.step(std::span(&input, 1));
      EXPECT_TRUE(rows.ok()) << rows.error().message;
      out.insert(out.end(), rows->data, rows->data + rows->n * rows->d);
    }
    return out;
  }

  bool has(Site site) const {
    const arch::ModelShape& m = model_->shape();
    if (!trace::can_change(site)) return false;
    if (site == Site::kRouterLogits || site == Site::kExpertWeights) return m.n_experts > 0;
    if (site == Site::kPosEmbed) return m.learned_positions;
    return site != Site::kMlpPreLinear || m.gated_mlp;
  }

  const kernels::KernelTable* table_ = nullptr;
  std::unique_ptr<ThreadPool> pool_;
  std::shared_ptr<const model::LoadedModel> model_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

float worst(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(a[i] - b[i]));
  return most;
}

float spread(const std::vector<float>& v) {
  const auto [low, high] = std::minmax_element(v.begin(), v.end());
  return *high - *low;
}

TEST_P(EditedArchitecture, changing_nothing_leaves_every_bit) {
  const auto own = logits(80, 80, {});
  TestEditor everywhere([](Site site) { return !is_plain(site); }, nothing);
  for (const size_t chunk : {1u, 5u, 33u, 80u}) {
    EXPECT_TRUE(same_bits(own, logits(80, chunk, {&everywhere}))) << "chunks of " << chunk;
  }
  for (int s = 0; s < trace::kSiteCount; ++s) {
    const auto site = static_cast<Site>(s);
    EXPECT_EQ(everywhere.fired.contains(site), has(site) && !is_plain(site))
        << trace::tap_name(site, 0);
    if (!has(site) || is_plain(site)) continue;
    TestEditor alone([&](Site at) { return at == site; }, nothing);
    EXPECT_TRUE(same_bits(own, logits(80, 33, {&alone}))) << trace::tap_name(site, 0);
  }
  load(5);
  EXPECT_TRUE(same_bits(own, logits(80, 33, {&everywhere}))) << "five threads";
}

TEST_P(EditedArchitecture, the_plain_forms_are_within_rounding) {
  const auto own = logits(80, 80, {}, true);
  for (const Site site : {Site::kAttnScores, Site::kPattern, Site::kResult}) {
    TestEditor alone([&](Site at) { return at == site; }, nothing);
    std::vector<float> whole;
    for (const size_t chunk : {80u, 33u, 1u}) {
      const auto got = logits(80, chunk, {&alone}, true);
      EXPECT_LE(worst(own, got), spread(own) * 1e-5f) << trace::tap_name(site, 0);
      if (whole.empty()) whole = got;
      EXPECT_TRUE(same_bits(whole, got)) << trace::tap_name(site, 0) << ", chunks of " << chunk;
    }
    EXPECT_TRUE(alone.fired.contains(site));
  }
}

// Sets one head (of {rows, heads, width}), or every head of a map, to 0.
void zero_first_head(const trace::TapEvent& event, float* values) {
  const Shape& shape = event.values.shape;
  for (int64_t row = 0; row < shape[0]; ++row) {
    std::fill_n(values + row * shape[1] * shape[2], shape[2], 0.0f);
  }
}

void zero_all(const trace::TapEvent& event, float* values) {
  std::fill_n(values, event.values.shape.elements(), 0.0f);
}

// The same thing done at two places: what a head read, or what it writes; what all heads look at,
// or what they read.
TEST_P(EditedArchitecture, one_change_at_two_taps_gives_one_answer) {
  const auto edited = [&](Site site, TestEditor::How how) {
    TestEditor editor([=](Site at) { return at == site; }, std::move(how));
    return logits(50, 50, {&editor}, true);
  };
  const auto own = logits(50, 50, {}, true);
  const auto z = edited(Site::kZ, zero_first_head), result = edited(Site::kResult, zero_first_head);
  EXPECT_LE(worst(z, result), spread(z) * 1e-5f);
  EXPECT_GT(worst(z, own), spread(z) * 1e-3f);
  const auto nothing_seen = edited(Site::kPattern, zero_all),
             nothing_read = edited(Site::kZ, zero_all);
  EXPECT_LE(worst(nothing_seen, nothing_read), spread(nothing_read) * 1e-5f);
  EXPECT_GT(worst(nothing_seen, own), spread(own) * 1e-3f);
  // Scores that are all the same: every head gives the mean of what it sees. By hand from hook_v,
  // whose first position is all that the first query sees.
  class First final : public trace::Probe {
   public:
    bool wants(Site site, int layer) const override {
      return layer == 0 && (site == Site::kV || site == Site::kZ);
    }
    void observe(const trace::TapEvent& event) override {
      auto& to = event.site == Site::kV ? v : z;
      to.assign(event.values.data, event.values.data + event.values.shape.elements());
    }
    std::vector<float> v, z;
  } first;
  TestEditor flat([](Site at) { return at == Site::kAttnScores; }, zero_all);
  logits(2, 2, {&flat}, true, {&first});
  const arch::ModelShape& m = model_->shape();
  const int64_t group = m.n_heads / m.n_kv_heads, kv = m.n_kv_heads * m.d_head;
  for (int64_t i = 0; i < m.n_heads * m.d_head; ++i) {
    const int64_t from = i / m.d_head / group * m.d_head + i % m.d_head;
    const float a = first.v[static_cast<size_t>(from)], b = first.v[static_cast<size_t>(kv + from)];
    EXPECT_EQ(first.z[static_cast<size_t>(i)], a);
    const float second = first.z[static_cast<size_t>(m.n_heads * m.d_head + i)];
    // A window of one key leaves the second query its own.
    EXPECT_TRUE(std::fabs(second - (a + b) / 2) <= 1e-6f * (1 + std::fabs(a) + std::fabs(b)) ||
                second == b)
        << i;
  }
}

// What is changed from a position on is read from there on; what comes before keeps its bits.
TEST_P(EditedArchitecture, a_change_is_read_from_its_position_on) {
  const arch::ModelShape& m = model_->shape();
  for (int s = 0; s < trace::kSiteCount; ++s) {
    const auto site = static_cast<Site>(s);
    if (!has(site) || (site == Site::kRouterLogits && m.n_experts == 1)) continue;
    TestEditor idle([&](Site at) { return at == site; }, nothing);
    TestEditor busy([&](Site at) { return at == site; }, disturb);
    const auto own = logits(70, 70, {&idle});
    const auto changed = logits(70, 33, {&busy});
    const auto before = static_cast<std::ptrdiff_t>(kFrom * m.vocab);
    EXPECT_TRUE(
        same_bits({own.begin(), own.begin() + before}, {changed.begin(), changed.begin() + before}))
        << trace::tap_name(site, 0);
    for (auto at = before; at < std::ssize(own); at += m.vocab) {
      EXPECT_FALSE(same_bits({own.begin() + at, own.begin() + at + m.vocab},
                             {changed.begin() + at, changed.begin() + at + m.vocab}))
          << trace::tap_name(site, 0) << ", position " << at / m.vocab;
    }
    EXPECT_TRUE(same_bits(changed, logits(70, 1, {&busy}))) << trace::tap_name(site, 0);
  }
}

// Probes see what attention goes on with: what an editor writes for keys that a query does not see
// is not there; and the standing form is the head of the changed pattern.
TEST_P(EditedArchitecture, probes_see_changed_maps_as_they_are_read) {
  class Maps final : public trace::Probe {
   public:
    bool wants(Site site, int layer) const override {
      return layer == 0 && (site == Site::kAttnScores || site == Site::kPattern);
    }
    void observe(const trace::TapEvent& event) override {
      const Shape& shape = event.values.shape;
      const auto at = [&](int64_t h, int64_t q, int64_t k) {
        return event.values.data[(h * shape[1] + q) * shape[2] + k];
      };
      const bool scores = event.site == Site::kAttnScores;
      for (int64_t h = 0; h < shape[0]; ++h) {
        for (int64_t q = 0; q < shape[1]; ++q) {
          const int64_t position = event.first_position + q;
          for (int64_t k = position + 1; k < shape[2]; ++k) {
            unseen_wrong += at(h, q, k) != (scores ? -INFINITY : 0.0f);
          }
          if (scores) continue;
          auto& row = rows[{position, h}];
          for (int64_t k = 0; k <= position; ++k) row.push_back(at(h, q, k));
        }
      }
    }
    int64_t top_keys(int layer) const override { return layer == 0 ? 3 : 0; }
    void observe_top(const trace::AttentionTopEvent& event) override {
      for (int64_t i = 0; i < event.n * event.n_heads; ++i) {
        const std::pair at(event.first_position + i / event.n_heads, i % event.n_heads);
        keys[at].assign(event.keys + i * event.k, event.keys + (i + 1) * event.k);
        top[at].assign(event.probabilities + i * event.k, event.probabilities + (i + 1) * event.k);
        rest[at] = {event.rest[i], event.entropy[i]};
      }
    }
    using Place = std::pair<int64_t, int64_t>;  // position, head
    int64_t unseen_wrong = 0;
    std::map<Place, std::vector<float>> rows, top;
    std::map<Place, std::vector<int32_t>> keys;
    std::map<Place, std::pair<float, float>> rest;
  };
  for (const Site site : {Site::kAttnScores, Site::kPattern}) {
    TestEditor editor([=](Site at) { return at == site; },
                      [](const trace::TapEvent& event, float* values) {
                        for (int64_t i = 0; i < event.values.shape.elements(); ++i) {
                          values[i] = 0.25f + 0.001f * static_cast<float>(i % 7);
                        }
                      });
    Maps maps;
    logits(70, 33, {&editor}, true, {&maps});
    EXPECT_EQ(maps.unseen_wrong, 0) << trace::tap_name(site, 0);
    ASSERT_EQ(maps.rows.size(), static_cast<size_t>(70 * model_->shape().n_heads));
    ASSERT_EQ(maps.top.size(), maps.rows.size());
    for (const auto& [place, row] : maps.rows) {
      std::vector<int32_t> order(row.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
      });
      double rest = 0, entropy = 0;
      for (const float p : row) {
        rest += static_cast<double>(p);
        if (p > 0) entropy -= static_cast<double>(p) * std::log(static_cast<double>(p));
      }
      for (size_t j = 0; j < 3; ++j) {
        const bool there = j < order.size() && row[static_cast<size_t>(order[j])] > 0;
        EXPECT_EQ(maps.keys[place][j], there ? order[j] : -1) << place.first << " " << j;
        EXPECT_EQ(maps.top[place][j], there ? row[static_cast<size_t>(order[j])] : 0.0f);
        if (there) rest -= static_cast<double>(row[static_cast<size_t>(order[j])]);
      }
      EXPECT_NEAR(maps.rest[place].first, rest, 1e-5);
      EXPECT_NEAR(maps.rest[place].second, entropy, 1e-4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EditedArchitecture,
                         ::testing::ValuesIn(testing::tiny_cases({DType::kF32, DType::kF16,
                                                                  DType::kQ8_0, DType::kQ4_1})),
                         testing::CaseName());

}  // namespace
}  // namespace cutaway
