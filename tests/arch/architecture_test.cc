// What must hold for every architecture, whatever it is: built from its own tiny configurations, so
// that a new one is tested by its line in the registry.

#include "arch/architecture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "inference/runner.h"
#include "tests/support/tiny_cases.h"
#include "trace/tracer.h"

namespace cutaway {
namespace {

using inference::Runner;
using inference::SequenceState;
using inference::StepInput;
using inference::WantLogits;

struct Case {
  const arch::Architecture* architecture;
  Metadata config;
  DType type;
  bool keep_optional;
  kernels::KvType cache;
  std::string name;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const arch::Architecture& architecture : arch::architectures()) {
    int index = 0;
    for (const Metadata& config : architecture.tiny_configs()) {
      for (const DType type :
           {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
            DType::kQ5_0, DType::kQ5_1, DType::kIQ4_NL, DType::kMXFP4}) {
        // Every option at every type would say little more than each at one.
        const bool keep = type != DType::kF16;
        out.push_back({&architecture, config, type, keep, kernels::KvType::kF16,
                       std::string(architecture.name) + "_" + std::to_string(index) + "_" +
                           dtype_name(type)});
      }
      // What a cache's type does has nothing to do with that of the weights: one of them is enough.
      for (const kernels::KvType cache : {kernels::KvType::kQ8, kernels::KvType::kQ4}) {
        out.push_back({&architecture, config, DType::kQ8_0, true, cache,
                       std::string(architecture.name) + "_" + std::to_string(index) + "_cache_" +
                           kernels::kv_type_name(cache)});
      }
      ++index;
    }
  }
  return out;
}

std::vector<int32_t> prompt(int64_t n) { return testing::tiny_prompt(n); }

class EveryArchitecture : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { load("", 2); }

  void load(const std::string& isa, int threads) {
    auto selection = kernels::select_table(isa);
    ASSERT_TRUE(selection.ok()) << selection.error().message;
    table_ = selection->table;
    pool_ = std::make_unique<ThreadPool>(threads);
    std::string error;
    model_ = testing::tiny_model(*GetParam().architecture, GetParam().config, GetParam().type,
                                 *pool_, GetParam().keep_optional, &error);
    ASSERT_NE(model_, nullptr) << error;
    const arch::ModelShape& m = model_->shape();
    pages_ = std::make_unique<kv::PagePool>(
        kv::Geometry{m.n_layers, m.n_kv_heads, m.d_head, m.d_head, GetParam().cache}, 64);
  }

  // All logits of `tokens`, fed in chunks.
  std::vector<float> logits(std::span<const int32_t> tokens, size_t chunk, bool precise = false,
                            std::vector<trace::Probe*> probes = {}) {
    Runner runner(*model_, *table_, *pool_, precise);
    runner.set_probes(std::move(probes));
    SequenceState sequence(*pages_);
    std::vector<float> out;
    for (size_t at = 0; at < tokens.size(); at += chunk) {
      const StepInput input{&sequence, tokens.subspan(at, std::min(chunk, tokens.size() - at)),
                            WantLogits::kAll};
      auto rows = runner.step(std::span(&input, 1));
      EXPECT_TRUE(rows.ok()) << rows.error().message;
      out.insert(out.end(), rows->data, rows->data + rows->n * rows->d);
    }
    return out;
  }

  const kernels::KernelTable* table_ = nullptr;
  std::unique_ptr<ThreadPool> pool_;
  std::shared_ptr<const model::LoadedModel> model_;
  std::unique_ptr<kv::PagePool> pages_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_P(EveryArchitecture, PrefillEqualsDecodeAndEveryChunkingBitForBit) {
  const auto tokens = prompt(150);  // more than two tiles of keys
  const auto whole = logits(tokens, tokens.size());
  for (const size_t chunk : {1u, 7u, 63u, 64u, 65u}) {
    EXPECT_TRUE(same_bits(whole, logits(tokens, chunk))) << "chunks of " << chunk;
  }
}

TEST_P(EveryArchitecture, ThreadsDoNotChangeABit) {
  const auto tokens = prompt(100);
  const auto two = logits(tokens, 33);
  for (const int threads : {1, 3, 5}) {
    load("", threads);
    EXPECT_TRUE(same_bits(two, logits(tokens, 33))) << threads << " threads";
  }
}

TEST_P(EveryArchitecture, ASequenceInABatchEqualsItselfAlone) {
  const auto a = prompt(90);
  std::vector<int32_t> b = prompt(70);
  for (int32_t& token : b) token = 255 - token;
  const auto alone_a = logits(a, a.size());
  const auto alone_b = logits(b, b.size());
  Runner runner(*model_, *table_, *pool_, false);
  SequenceState first(*pages_), second(*pages_);
  std::vector<float> got_a, got_b;
  const size_t step = 10;
  for (size_t at = 0; at < a.size(); at += step) {
    std::vector<StepInput> inputs{{&first, std::span(a).subspan(at, step), WantLogits::kAll}};
    if (at < b.size()) {
      inputs.push_back({&second, std::span(b).subspan(at, step), WantLogits::kAll});
    }
    auto rows = runner.step(inputs);
    ASSERT_TRUE(rows.ok());
    const auto take = [&](std::vector<float>& to, int64_t row) {
      to.insert(to.end(), rows->row(row), rows->row(row) + static_cast<int64_t>(step) * rows->d);
    };
    take(got_a, 0);
    if (inputs.size() > 1) take(got_b, static_cast<int64_t>(step));
  }
  EXPECT_TRUE(same_bits(alone_a, got_a));
  EXPECT_TRUE(same_bits(alone_b, got_b));
}

TEST_P(EveryArchitecture, TruncatingAndGoingOnEqualsANewSequence) {
  const auto tokens = prompt(100);
  const auto whole = logits(tokens, tokens.size());
  Runner runner(*model_, *table_, *pool_, false);
  SequenceState sequence(*pages_);
  std::vector<int32_t> other(tokens.begin(), tokens.begin() + 30);
  other.resize(120, 3);
  StepInput input{&sequence, other, WantLogits::kNone};
  ASSERT_TRUE(runner.step(std::span(&input, 1)).ok());
  sequence.truncate(30);
  input = {&sequence, std::span(tokens).subspan(30), WantLogits::kAll};
  auto rows = runner.step(std::span(&input, 1));
  ASSERT_TRUE(rows.ok());
  const std::vector<float> got(rows->data, rows->data + rows->n * rows->d);
  const std::vector<float> expected(whole.end() - static_cast<int64_t>(got.size()), whole.end());
  EXPECT_TRUE(same_bits(expected, got));
}

// Counts what it sees, and keeps a checksum so that reading cannot be optimised away.
class CountingProbe final : public trace::Probe {
 public:
  bool wants(trace::Site, int) const override { return true; }
  void observe(const trace::TapEvent& event) override {
    seen.insert({event.site, event.layer});
    for (int64_t i = 0; i < event.values.rows(); ++i) checksum += event.values.row(i)[0];
  }
  std::set<std::pair<trace::Site, int>> seen;
  double checksum = 0;
};

TEST_P(EveryArchitecture, EveryTapFiresAndNoneChangesABit) {
  const auto tokens = prompt(80);
  const auto unobserved = logits(tokens, 33);
  CountingProbe probe;
  const auto observed = logits(tokens, 33, false, {&probe});
  EXPECT_TRUE(same_bits(unobserved, observed));
  using trace::Site;
  const int n_layers = static_cast<int>(model_->shape().n_layers);
  for (int s = 0; s < trace::kSiteCount; ++s) {
    const auto site = static_cast<Site>(s);
    const arch::ModelShape& m = model_->shape();
    const bool routers =
        site == Site::kRouterLogits || site == Site::kExpertIndices || site == Site::kExpertWeights;
    const bool fires = routers                       ? m.n_experts > 0
                       : site == Site::kPosEmbed     ? m.learned_positions
                       : site == Site::kMlpPreLinear ? m.gated_mlp
                                                     : true;
    const bool per_layer = trace::tap_name(site, 0) != trace::tap_name(site, 1);
    for (int layer = per_layer ? 0 : -1; layer < (per_layer ? n_layers : 0); ++layer) {
      EXPECT_EQ(probe.seen.contains({site, layer}), fires) << trace::tap_name(site, layer);
    }
  }
}

TEST_P(EveryArchitecture, TracingDoesNotChangeABit) {
  const auto tokens = prompt(40);
  const auto untraced = logits(tokens, 16);
  class Swallow final : public trace::Sink {
   public:
    void write(const trace::Record&) override { ++records; }
    std::atomic<int64_t> records = 0;
  };
  for (const trace::Level level :
       {trace::Level::kPhases, trace::Level::kFunctions, trace::Level::kTensors}) {
    trace::Tracer tracer;
    auto sink = std::make_shared<Swallow>();
    tracer.add_sink(sink, level);
    {
      const trace::Attach attach(&tracer);
      EXPECT_TRUE(same_bits(untraced, logits(tokens, 16))) << trace::level_name(level);
    }
    ASSERT_TRUE(tracer.flush().ok());
    // A forward pass opens no phase of its own.
    EXPECT_EQ(sink->records > 0, level != trace::Level::kPhases);
  }
}

TEST_P(EveryArchitecture, EveryTableIsNearTheReference) {
  const auto tokens = prompt(70);
  load("ref", 2);
  const auto quantised = logits(tokens, 35), exact = logits(tokens, 35, true);
  for (const char* isa : {"avx2", "avx512"}) {
    if (!kernels::select_table(isa).ok()) continue;
    load(isa, 2);
    // Tables round in different places: f32 products of at most 160 terms through a few layers stay
    // within 2⁻¹⁶ of the spread. An 8-bit activation that falls on a rounding border may differ by
    // one step, 1/254 of its block's largest value: a hundredth of the spread is far above what a
    // few such steps can do, and far below what a wrong kernel does. A quantised key or value may
    // do so too, whatever the activations are; a step of kQ4 is 1/15 of its block's range.
    const kernels::KvType cache = GetParam().cache;
    const float steps = cache == kernels::KvType::kQ4 ? 0.05f : 0.01f;
    const float exact_steps = cache == kernels::KvType::kF16 ? 0x1p-12f : steps;
    const auto spread = [](const std::vector<float>& v) {
      const auto [low, high] = std::minmax_element(v.begin(), v.end());
      return *high - *low;
    };
    const auto worst = [](const std::vector<float>& a, const std::vector<float>& b) {
      float most = 0;
      for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(a[i] - b[i]));
      return most;
    };
    const auto mine = logits(tokens, 35);
    ASSERT_EQ(mine.size(), quantised.size());
    EXPECT_LT(worst(mine, quantised), spread(quantised) * steps) << isa;
    EXPECT_LT(worst(logits(tokens, 35, true), exact), spread(exact) * exact_steps) << isa;
  }
}

TEST_P(EveryArchitecture, WeightsAreOnlyRead) {
  const Hash128 before = model_->packed_hash();
  logits(prompt(70), 20);
  EXPECT_EQ(before, model_->packed_hash());
}

TEST_P(EveryArchitecture, ATokenOutsideTheVocabularyIsAnError) {
  Runner runner(*model_, *table_, *pool_, false);
  SequenceState sequence(*pages_);
  for (const int32_t bad : {-1, static_cast<int32_t>(model_->shape().vocab)}) {
    const StepInput input{&sequence, std::span(&bad, 1), WantLogits::kLast};
    auto rows = runner.step(std::span(&input, 1));
    ASSERT_FALSE(rows.ok());
    EXPECT_NE(rows.error().message.find(std::to_string(bad)), std::string::npos);
    EXPECT_EQ(sequence.length(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryArchitecture, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cutaway
