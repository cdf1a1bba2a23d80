// Invariant 1 at every tap of the default model: watching a value, or handing it to an editor that
// leaves it alone, changes no bit of any logit, in the prompt and in what follows it. Skipped, and
// said, where the model is not installed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "cutaway/model_store.h"
#include "inference/runner.h"
#include "kernels/table.h"

namespace cutaway {
namespace {

using inference::Runner;
using inference::StepInput;
using inference::WantLogits;
using trace::Site;

constexpr const char* kModel = "smollm2-135m";

bool is_plain(Site site) {
  return site == Site::kAttnScores || site == Site::kPattern || site == Site::kResult;
}

// Takes one tap, or all, of every layer.
class Watcher final : public trace::Probe {
 public:
  explicit Watcher(std::function<bool(Site)> which) : which_(std::move(which)) {}
  bool wants(Site site, int) const override { return which_(site); }
  void observe(const trace::TapEvent& event) override {
    ++events;
    values += event.values.shape.elements();
  }
  int64_t events = 0, values = 0;

 private:
  std::function<bool(Site)> which_;
};

// As a capture asks: a few heads and positions, attention maps in memory of its own, and the
// standing form beside them. None of it goes the way of a Watcher.
class Selector final : public trace::Probe {
 public:
  bool wants(Site site, int) const override {
    return site == Site::kAttnScores || site == Site::kPattern || site == Site::kResult;
  }
  trace::TapPart part(Site, int) const override { return {kBegin, kEnd, heads_}; }
  trace::MapMemory map_memory(Site site, int) override {
    ++maps;
    std::vector<float>& to = site == Site::kPattern ? pattern : scores;
    to.assign(heads_.size() * kRows * kEnd, 0.0f);
    return {to.data(), kBegin, kEnd, kEnd, int64_t{kRows} * kEnd, heads_, true};
  }
  int64_t top_keys(int) const override { return 8; }
  void observe(const trace::TapEvent&) override { ++events; }
  void observe_top(const trace::AttentionTopEvent& event) override { tops += event.n; }

  static constexpr int32_t kBegin = 5, kEnd = 77, kRows = kEnd - kBegin;
  int64_t events = 0, maps = 0, tops = 0;
  std::vector<float> scores, pattern;  // where the maps of a layer are computed

 private:
  std::vector<int32_t> heads_{0, 4};
};

// As a capture of everything: all rows in memory of its own, where what exists for probes alone is
// computed, and what follows may be computed from.
class Keeper final : public trace::Probe {
 public:
  bool wants(Site, int) const override { return true; }
  float* row_memory(Site site, int layer, int64_t first_position, int64_t n,
                    int64_t row_elements) override {
    std::vector<float>& to = rows[{site, layer, first_position}];
    to.assign(static_cast<size_t>(n * row_elements), std::nanf(""));
    return to.data();
  }
  void observe(const trace::TapEvent& event) override {
    const auto it = rows.find({event.site, event.layer, event.first_position});
    if (it == rows.end() || it->second.data() != event.values.data) return;
    ++in_place;
    for (const float x : it->second) unwritten += std::isnan(x);
  }

  std::map<std::tuple<Site, int, int64_t>, std::vector<float>> rows;
  int64_t in_place = 0, unwritten = 0;
};

class Toucher final : public trace::Editor {
 public:
  explicit Toucher(Site site) : site_(site) {}
  bool changes(Site site, int) const override { return site == site_; }
  void edit(const trace::TapEvent&, float*) override { ++events; }
  int64_t events = 0;

 private:
  Site site_;
};

class RealModelTaps : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto path = ModelStore().resolve(kModel);
    if (!path.ok()) GTEST_SKIP() << kModel << " is not installed: cutaway pull " << kModel;
    table_ = kernels::select_table("").value().table;
    auto model = model::LoadedModel::load(*path, pool_, {});
    ASSERT_TRUE(model.ok()) << model.error().message;
    model_ = *model;
  }

  // Logits of the prompt's last position and of `steps` greedy choices after it.
  std::vector<float> logits(std::vector<trace::Probe*> probes, std::vector<trace::Editor*> editors,
                            bool precise = false, ThreadPool* pool = nullptr) {
    const arch::ModelShape& m = model_->shape();
    kv::PagePool pages({m.n_layers, m.n_kv_heads, m.d_head, m.d_head,
                        precise ? kernels::KvType::kF32 : kernels::KvType::kF16},
                       8);
    Runner runner(*model_, *table_, pool == nullptr ? pool_ : *pool, precise);
    runner.set_probes(std::move(probes));
    runner.set_editors(std::move(editors));
    inference::SequenceState sequence(pages);
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < 75; ++i) prompt.push_back((i * 7919 + 504) % 40000);
    std::vector<float> out;
    int32_t next = 0;
    const auto append = [&](std::span<const int32_t> tokens) {
      const StepInput input{&sequence, tokens, WantLogits::kLast};
      const auto rows = runner.step(std::span(&input, 1));
      ASSERT_TRUE(rows.ok()) << rows.error().message;
      out.insert(out.end(), rows->data, rows->data + rows->d);
      next = static_cast<int32_t>(std::max_element(rows->data, rows->data + rows->d) - rows->data);
    };
    append(std::span(prompt).first(64));
    append(std::span(prompt).subspan(64));
    for (int step = 0; step < 4; ++step) append(std::span(&next, 1));
    return out;
  }

  const kernels::KernelTable* table_ = nullptr;
  ThreadPool pool_{2};
  std::shared_ptr<const model::LoadedModel> model_;
};

TEST_F(RealModelTaps, WatchingAnyTapChangesNoBit) {
  const auto own = logits({}, {});
  int fired = 0;
  for (int s = 0; s < trace::kSiteCount; ++s) {
    const auto site = static_cast<Site>(s);
    Watcher one([&](Site at) { return at == site; });
    EXPECT_TRUE(own == logits({&one}, {})) << trace::tap_name(site, 0);
    fired += one.events > 0 ? 1 : 0;
  }
  ThreadPool alone(1);
  Watcher all([](Site) { return true; });
  EXPECT_TRUE(own == logits({&all}, {})) << "every tap at once";
  EXPECT_TRUE(own == logits({&all}, {}, false, &alone)) << "every tap at once, one thread";
  // No absolute positions and no experts in this model.
  EXPECT_EQ(fired, trace::kSiteCount - 4);
  std::printf("%d taps watched, the bits of %zu logits each\n", fired, own.size());
}

TEST_F(RealModelTaps, ASelectionAndTheStandingFormChangeNoBit) {
  const auto own = logits({}, {});
  ThreadPool alone(1);
  for (ThreadPool* pool : {&pool_, &alone}) {
    Selector selector;
    EXPECT_TRUE(own == logits({&selector}, {}, false, pool));
    EXPECT_GT(selector.maps, 0);
    EXPECT_GT(selector.events, 0) << "hook_result";
    EXPECT_EQ(selector.tops, 79 * model_->shape().n_layers) << "a row of every position and layer";
    // With somebody else at the same taps, maps are shown and not computed in place.
    Selector beside;
    Watcher all([](Site) { return true; });
    EXPECT_TRUE(own == logits({&beside, &all}, {}, false, pool));
    EXPECT_GT(beside.events, selector.events);
  }
}

TEST_F(RealModelTaps, WhatIsComputedInAProbesMemoryChangesNoBit) {
  ThreadPool alone(1);
  for (const bool precise : {false, true}) {
    const auto own = logits({}, {}, precise);
    for (ThreadPool* pool : {&pool_, &alone}) {
      Keeper keeper;
      EXPECT_TRUE(own == logits({&keeper}, {}, precise, pool)) << (precise ? "precise" : "");
      EXPECT_GT(keeper.in_place, 6 * model_->shape().n_layers);  // of each of the six passes
      EXPECT_EQ(keeper.unwritten, 0);
      // Somebody who watches the same, and one who hands back what it gets.
      Keeper beside;
      Watcher all([](Site) { return true; });
      EXPECT_TRUE(own == logits({&beside, &all}, {}, precise, pool));
      Toucher toucher(Site::kMlpPost);
      EXPECT_TRUE(own == logits({&beside}, {&toucher}, precise, pool));
    }
  }
}

TEST_F(RealModelTaps, AnEditorThatChangesNothingLeavesEveryBit) {
  const auto own = logits({}, {}), precise = logits({}, {}, true);
  const auto [low, high] = std::minmax_element(precise.begin(), precise.end());
  int fired = 0;
  for (int s = 0; s < trace::kSiteCount; ++s) {
    const auto site = static_cast<Site>(s);
    Toucher toucher(site);
    if (!is_plain(site)) {
      EXPECT_TRUE(own == logits({}, {&toucher})) << trace::tap_name(site, 0);
    } else {
      const auto got = logits({}, {&toucher}, true);
      float worst = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        worst = std::max(worst, std::fabs(got[i] - precise[i]));
      }
      EXPECT_LE(worst, (*high - *low) * 1e-5f) << trace::tap_name(site, 0);
    }
    fired += toucher.events > 0 ? 1 : 0;
  }
  EXPECT_EQ(fired, trace::kSiteCount - 5);  // and the tokens, which nothing reads again
}

}  // namespace
}  // namespace cutaway
