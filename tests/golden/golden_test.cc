// Tiny models against what transformers computed with them (tests/golden/README.md): logits, each
// layer's residual stream and attention pattern, read through the probe interface.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "inference/runner.h"
#include "kernels/table.h"
#include "model/loaded_model.h"
#include "tests/golden/safetensors.h"

namespace cutaway {
namespace {

using trace::Site;

// Keeps every value of the residual stream, the patterns and the logits.
class KeepingProbe final : public trace::Probe {
 public:
  bool wants(Site site, int) const override {
    return site == Site::kEmbed || site == Site::kPosEmbed || site == Site::kResidPost ||
           site == Site::kPattern || site == Site::kLogits || site == Site::kRouterLogits ||
           site == Site::kExpertIndices || site == Site::kExpertWeights;
  }
  void observe(const trace::TapEvent& event) override {
    std::vector<float>& values = kept[{event.site, event.layer}];
    for (int64_t i = 0; i < event.values.rows(); ++i) {
      values.insert(values.end(), event.values.row(i),
                    event.values.row(i) + event.values.row_elements());
    }
  }
  std::map<std::pair<Site, int>, std::vector<float>> kept;
};

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(CUTAWAY_SOURCE_DIR "/tests/golden")) {
    if (entry.path().extension() == ".gguf") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The largest difference, as a share of the reference's spread (max − min).
double distance(const testing::SafeTensor& expected, const std::vector<float>& actual) {
  EXPECT_EQ(expected.elements(), actual.size());
  if (expected.elements() != actual.size()) return 1;
  const float* e = expected.floats();
  const auto [low, high] = std::minmax_element(e, e + actual.size());
  double worst = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    worst = std::max(worst, std::fabs(static_cast<double>(e[i]) - actual[i]));
  }
  // One position attends to itself alone: all values are equal, and have no spread.
  const double spread = static_cast<double>(*high) - *low;
  return worst / (spread > 0 ? spread : std::fabs(static_cast<double>(*high)));
}

// The routers' decisions: logits and weights within the bound, the experts and their order the
// same.
void expect_routing(const std::map<std::string, testing::SafeTensor>& golden,
                    const KeepingProbe& probe, int n_layers) {
  for (int layer = 0; layer < n_layers; ++layer) {
    const std::string number = std::to_string(layer);
    EXPECT_LT(distance(golden.at("router." + number), probe.kept.at({Site::kRouterLogits, layer})),
              1e-3);
    EXPECT_LT(distance(golden.at("expert_weights." + number),
                       probe.kept.at({Site::kExpertWeights, layer})),
              1e-3);
    const testing::SafeTensor& experts = golden.at("experts." + number);
    const std::vector<float>& chosen = probe.kept.at({Site::kExpertIndices, layer});
    ASSERT_EQ(experts.elements(), chosen.size());
    for (size_t i = 0; i < chosen.size(); ++i) {
      EXPECT_EQ(static_cast<float>(experts.ints()[i]), chosen[i]) << "layer " << layer << ", " << i;
    }
  }
}

class Golden : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(Golden, MatchesTheReference) {
  const auto& [name, isa] = GetParam();
  const auto selection = kernels::select_table(isa);
  if (!selection.ok()) GTEST_SKIP() << selection.error().message;
  const std::string stem = std::string(CUTAWAY_SOURCE_DIR "/tests/golden/") + name;
  const auto golden = testing::read_safetensors(stem + ".safetensors");
  ThreadPool pool(2);
  auto model = model::LoadedModel::load(stem + ".gguf", pool, {});
  ASSERT_TRUE(model.ok()) << model.error().message;
  const arch::ModelShape& m = (*model)->shape();
  kv::PagePool pages({m.n_layers, m.n_kv_heads, m.d_head, m.d_head, kernels::KvType::kF32}, 16);
  inference::Runner runner(**model, *selection->table, pool, true);
  KeepingProbe probe;
  runner.set_probes({&probe});
  inference::SequenceState sequence(pages);
  const testing::SafeTensor& tokens = golden.at("tokens");
  // As the reference, which chooses rotary factors by the number of tokens.
  runner.set_context(static_cast<int64_t>(tokens.elements()));
  const inference::StepInput input{
      &sequence, {tokens.ints(), tokens.elements()}, inference::WantLogits::kAll};
  auto rows = runner.step(std::span(&input, 1));
  ASSERT_TRUE(rows.ok()) << rows.error().message;

  constexpr double kBound = 1e-3;
  EXPECT_LT(distance(golden.at("logits"), probe.kept.at({Site::kLogits, -1})), kBound);
  EXPECT_LT(distance(golden.at("hidden.0"), probe.kept.at({Site::kEmbed, -1})), kBound);
  for (int layer = 0; layer < static_cast<int>(m.n_layers); ++layer) {
    const std::string hidden = "hidden." + std::to_string(layer + 1);
    const std::string attention = "attn." + std::to_string(layer);
    EXPECT_LT(distance(golden.at(hidden), probe.kept.at({Site::kResidPost, layer})), kBound)
        << hidden;
    EXPECT_LT(distance(golden.at(attention), probe.kept.at({Site::kPattern, layer})), kBound)
        << attention;
  }
  if (m.n_experts > 0) expect_routing(golden, probe, static_cast<int>(m.n_layers));
  if (m.learned_positions) {
    EXPECT_LT(distance(golden.at("pos_embed"), probe.kept.at({Site::kPosEmbed, -1})), kBound);
  }
  // The reference's own last residual stream, read by the final norm and the head.
  const testing::SafeTensor& last = golden.at("hidden." + std::to_string(m.n_layers));
  std::vector<float> stream(last.floats(), last.floats() + last.elements());
  const ops::Rows read =
      runner.unembed({stream.data(), static_cast<int64_t>(tokens.elements()), m.d_model});
  EXPECT_LT(distance(golden.at("logits"), {read.data, read.data + read.n * read.d}), kBound);
  // Every tensor that the reference gave was compared.
  const int64_t once = 3 + (m.learned_positions ? 1 : 0), per_layer = m.n_experts > 0 ? 5 : 2;
  EXPECT_EQ(golden.size(), static_cast<size_t>(once + per_layer * m.n_layers));
}

INSTANTIATE_TEST_SUITE_P(All, Golden,
                         ::testing::Combine(::testing::ValuesIn(golden_names()),
                                            ::testing::Values("ref", "avx2", "avx512")),
                         [](const auto& info) {
                           std::string name =
                               std::get<0>(info.param) + "_" + std::get<1>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Goldens, AreThere) { EXPECT_GE(golden_names().size(), 35u); }

}  // namespace
}  // namespace cutaway
