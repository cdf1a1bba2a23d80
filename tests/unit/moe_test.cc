// Mixtures of experts: which experts a router chooses, and that a row's result is the plain sum of
// its experts whatever rows are beside it.

#include "ops/moe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "formats/quantize_row.h"
#include "ops/blocks.h"
#include "ops/routing.h"
#include "trace/trace.h"
#include "trace/tracer.h"

namespace cutaway::ops {
namespace {

using trace::Site;

// Weights that live as long as the test.
struct Store {
  std::vector<std::vector<uint8_t>> bytes;

  Linear matrix(DType type, int64_t rows, int64_t cols, const std::vector<float>& values) {
    std::vector<uint8_t> stored(dtype_bytes(type, static_cast<size_t>(rows * cols)));
    const size_t row_bytes = dtype_bytes(type, static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r) {
      formats::quantize_row(type, values.data() + r * cols, cols,
                            stored.data() + static_cast<size_t>(r) * row_bytes);
    }
    Linear out;
    kernels::PackedMatrix& packed = out.weight.packed;
    packed.layout = kernels::layout_for(type);
    packed.rows = rows;
    packed.cols = cols;
    std::vector<uint8_t>& room = bytes.emplace_back(packed.bytes() + 64);
    uint8_t* aligned = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
    EXPECT_EQ(kernels::pack_groups(stored, type, rows, cols, {}, 0, packed.groups(), aligned), -1);
    packed.data = aligned;
    return out;
  }
  Linear random(DType type, int64_t rows, int64_t cols) {
    std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(cols)));
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (float& value : values) value = normal(rng);
    return matrix(type, rows, cols, values);
  }
  std::mt19937 rng{11};
};

struct Seen final : public trace::Probe {
  bool wants(Site, int) const override { return on; }
  void observe(const trace::TapEvent& event) override {
    const float* data = event.values.data;
    values[event.site].assign(data, data + event.values.shape.elements());
    shapes[event.site] = event.values.shape;
  }
  bool on = true;
  std::map<Site, std::vector<float>> values;
  std::map<Site, Shape> shapes;
};

class Moe : public ::testing::Test {
 protected:
  // Runs f over a pass of n rows.
  template <typename F>
  void with_pass(int64_t n, int threads, F&& f, std::vector<trace::Probe*> probes = {}) {
    ThreadPool pool(threads);
    Scratch scratch;
    Batch batch;
    batch.tokens.assign(static_cast<size_t>(n), 0);
    batch.slices.push_back({nullptr, 5, 0, n, -1, 0});
    Pass pass{*kernels::ref_table(), pool, scratch, batch, false, probes};
    f(pass);
  }

  // Row i's logits are row i of `logits`, times `one`.
  Routing routed(const std::vector<std::vector<float>>& logits, int64_t used, bool normalize,
                 float one = 1) {
    const auto rows = static_cast<int64_t>(logits.size());
    const auto experts = static_cast<int64_t>(logits[0].size());
    std::vector<float> weights(static_cast<size_t>(experts * rows));
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t i = 0; i < rows; ++i) {
        weights[static_cast<size_t>(e * rows + i)] =
            logits[static_cast<size_t>(i)][static_cast<size_t>(e)];
      }
    }
    const Linear router = store.matrix(DType::kF32, experts, rows, weights);
    Routing out;
    with_pass(rows, 2, [&](Pass& pass) {
      const Rows x = pass.make(rows, rows);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < rows; ++j) x.row(i)[j] = i == j ? one : 0.0f;
      }
      const Routing routing = route(pass, 0, router, used, normalize, x);
      out = routing;
      kept.assign(routing.weights.data, routing.weights.data + rows * used);
    });
    return out;
  }

  Store store;
  std::vector<float> kept;  // the weights of `routed`
};

TEST_F(Moe, TheLargestAreChosenInFallingOrderAndTiesByExpert) {
  const Routing r = routed({{1, 3, 2, 3, 0}, {4, 4, 4, 4, 4}, {0, -1, 5, -1, 5}}, 3, false);
  EXPECT_EQ(r.expert, (std::vector<int32_t>{1, 3, 2, 0, 1, 2, 2, 4, 0}));
}

TEST_F(Moe, EveryExpertMayBeUsed) {
  const Routing r = routed({{1, 3, 2}, {2, 2, 9}, {-7, -7, -7}}, 3, true);
  EXPECT_EQ(r.expert, (std::vector<int32_t>{1, 2, 0, 2, 0, 1, 0, 1, 2}));
}

TEST_F(Moe, WeightsAreTheSoftmaxOfAllOrOfTheChosen) {
  const std::vector<std::vector<float>> logits{{0.5f, 2, -1, 1}};
  double all = 0, two = std::exp(2.0) + std::exp(1.0);
  for (const float x : logits[0]) all += std::exp(static_cast<double>(x));
  routed(logits, 2, false);
  EXPECT_NEAR(kept[0], std::exp(2.0) / all, 1e-6);
  EXPECT_NEAR(kept[1], std::exp(1.0) / all, 1e-6);
  routed(logits, 2, true);
  EXPECT_NEAR(kept[0], std::exp(2.0) / two, 1e-6);
  EXPECT_NEAR(kept[0] + kept[1], 1, 1e-6);
}

TEST_F(Moe, ANaNIsSmallerThanEveryNumberAndChoosesExpertsThatExist) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();  // times zero is a NaN
  EXPECT_EQ(routed({{0, -1, 0, 1}}, 3, true, kInfinity).expert, (std::vector<int32_t>{3, 1, 0}));
  EXPECT_EQ(routed({{0, 0, 0}}, 2, true, kInfinity).expert, (std::vector<int32_t>{0, 1}));
}

struct Mixture {
  MoeWeights weights;
  std::vector<float> shared_gate;
};

Mixture mixture(Store& store, DType type, int64_t d, int64_t d_mlp, int64_t n, int64_t used,
                int64_t d_shared) {
  Mixture out;
  MoeWeights& w = out.weights;
  w.router = store.random(DType::kF32, n, d);
  w.used = used;
  w.normalize = d_shared == 0;
  const auto mlp = [&](int64_t width) {
    return GatedMlpWeights{store.random(type, width, d), store.random(type, width, d),
                           store.random(type, d, width)};
  };
  for (int64_t e = 0; e < n; ++e) w.experts.push_back(mlp(d_mlp));
  if (d_shared > 0) {
    w.shared = mlp(d_shared);
    out.shared_gate.resize(static_cast<size_t>(d));
    for (int64_t i = 0; i < d; ++i) out.shared_gate[static_cast<size_t>(i)] = 0.1f * (i % 7 - 3);
    w.shared_gate = {out.shared_gate.data(), d};
  }
  return out;
}

std::vector<float> rows_of(int64_t n, int64_t d) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(n * d));
  for (float& x : out) x = normal(rng);
  return out;
}

class MoeOfType : public Moe, public ::testing::WithParamInterface<DType> {
 protected:
  // x after moe_onto, which began as zeros.
  std::vector<float> run(const MoeWeights& w, const std::vector<float>& input, int64_t n, int64_t d,
                         int threads, trace::Probe* probe = nullptr) {
    std::vector<float> out;
    std::vector<trace::Probe*> probes;
    if (probe != nullptr) probes.push_back(probe);
    with_pass(
        n, threads,
        [&](Pass& pass) {
          const Rows normalized = pass.make(n, d), x = pass.make(n, d);
          std::copy_n(input.data(), n * d, normalized.data);
          std::fill_n(x.data, n * d, 0.0f);
          moe_onto(pass, 0, w, normalized, x);
          out.assign(x.data, x.data + n * d);
        },
        probes);
    return out;
  }
};

// The oracle: each row by itself through the plain gated MLP of each of its experts, in rank order.
TEST_P(MoeOfType, EqualsTheSumOfPlainMlpsBitForBit) {
  constexpr int64_t kRows = 37, kWidth = 64;
  for (const int64_t d_shared : {0, 96}) {
    const Mixture m = mixture(store, GetParam(), kWidth, 32, 9, 3, d_shared);
    const std::vector<float> input = rows_of(kRows, kWidth);
    Seen seen;
    const std::vector<float> got = run(m.weights, input, kRows, kWidth, 3, &seen);
    std::vector<float> expected(input.size(), 0.0f);
    for (int64_t i = 0; i < kRows; ++i) {
      with_pass(1, 1, [&](Pass& pass) {
        const Rows row = pass.make(1, kWidth);
        std::copy_n(input.data() + i * kWidth, kWidth, row.data);
        std::vector<float> sum(kWidth);
        for (int64_t rank = 0; rank < 3; ++rank) {
          const auto at = static_cast<size_t>(i * 3 + rank);
          const auto expert = static_cast<size_t>(seen.values[Site::kExpertIndices][at]);
          const Rows y = gated_mlp(pass, 0, m.weights.experts[expert], row);
          for (int64_t j = 0; j < kWidth; ++j) {
            const float term = seen.values[Site::kExpertWeights][at] * y.data[j];
            sum[static_cast<size_t>(j)] = rank == 0 ? term : sum[static_cast<size_t>(j)] + term;
          }
        }
        if (d_shared > 0) {
          double dot = 0;
          for (int64_t j = 0; j < kWidth; ++j) {
            dot += static_cast<double>(m.shared_gate[static_cast<size_t>(j)]) * row.data[j];
          }
          const auto weight = static_cast<float>(1 / (1 + std::exp(-dot)));
          const Rows y = gated_mlp(pass, 0, m.weights.shared, row);
          for (int64_t j = 0; j < kWidth; ++j) sum[static_cast<size_t>(j)] += weight * y.data[j];
        }
        std::copy(sum.begin(), sum.end(), expected.begin() + i * kWidth);
      });
    }
    if (d_shared == 0) {
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0);
    }
    // The oracle's sigmoid is another one.
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5);
    EXPECT_EQ(seen.shapes[Site::kMlpPost], (Shape{kRows, 3, 32}));
    EXPECT_EQ(seen.values[Site::kMlpOut], got);  // onto zeros
    EXPECT_EQ(seen.values[Site::kResidPost], got);
  }
}

TEST_P(MoeOfType, NeitherRowsBesideNorThreadsNorProbesChangeABit) {
  constexpr int64_t kRows = 50, kWidth = 64;
  const Mixture m = mixture(store, GetParam(), kWidth, 96, 6, 2, 32);
  const std::vector<float> input = rows_of(kRows, kWidth);
  const std::vector<float> all = run(m.weights, input, kRows, kWidth, 2);
  Seen seen;
  EXPECT_EQ(all, run(m.weights, input, kRows, kWidth, 2, &seen));
  EXPECT_EQ(all, run(m.weights, input, kRows, kWidth, 5));
  for (int64_t i = 0; i < kRows; ++i) {
    const std::vector<float> row(input.begin() + i * kWidth, input.begin() + (i + 1) * kWidth);
    const std::vector<float> expected(all.begin() + i * kWidth, all.begin() + (i + 1) * kWidth);
    EXPECT_EQ(run(m.weights, row, 1, kWidth, 1), expected) << i;
  }
}

// The inside of the experts is shown in the order of rows and ranks.
TEST_P(MoeOfType, TheInsideIsShownRankByRank) {
  constexpr int64_t kRows = 20, kWidth = 64, kMlp = 32;
  const Mixture m = mixture(store, GetParam(), kWidth, kMlp, 5, 2, 0);
  const std::vector<float> input = rows_of(kRows, kWidth);
  Seen seen;
  run(m.weights, input, kRows, kWidth, 2, &seen);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t rank = 0; rank < 2; ++rank) {
      const int64_t at = i * 2 + rank;
      const auto expert =
          static_cast<size_t>(seen.values[Site::kExpertIndices][static_cast<size_t>(at)]);
      Seen one;
      with_pass(1, 1,
                [&](Pass& pass) {
                  const Rows row = pass.make(1, kWidth);
                  std::copy_n(input.data() + i * kWidth, kWidth, row.data);
                  gated_mlp(pass, 0, m.weights.experts[expert], row);
                },
                {&one});
      for (const Site site : {Site::kMlpPre, Site::kMlpPreLinear, Site::kMlpPost}) {
        const float* shown = seen.values[site].data() + at * kMlp;
        EXPECT_EQ(std::vector<float>(shown, shown + kMlp), one.values[site]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MoeOfType,
                         ::testing::Values(DType::kF32, DType::kQ8_0, DType::kQ4_0),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST_F(Moe, EachRowLeavesARecordOfItsRouting) {
  class Keep final : public trace::Sink {
   public:
    void write(const trace::Record& record) override {
      if (std::string_view(record.name) != "moe.route") return;
      positions.push_back(record.at.position);
      fields.assign(record.fields.begin(), record.fields.end());
    }
    std::vector<int32_t> positions;
    std::vector<trace::Field> fields;  // of the last one
  };
  trace::Tracer tracer;
  auto sink = std::make_shared<Keep>();
  tracer.add_sink(sink, trace::Level::kFunctions);
  {
    const trace::Attach attach(&tracer);
    routed({{1, 3, 2, 0}, {0, 0, 4, 0}}, 2, true);
  }
  ASSERT_TRUE(tracer.flush().ok());
  EXPECT_EQ(sink->positions, (std::vector<int32_t>{5, 6}));  // where the slice begins
  const auto field = [&](const char* key) {
    for (const trace::Field& found : sink->fields) {
      if (std::string_view(found.key) == key) return found;
    }
    ADD_FAILURE() << key;
    return trace::Field{};
  };
  EXPECT_EQ(field("experts").ids.count, 2u);
  EXPECT_EQ(field("experts").ids.first[0], 2);
  EXPECT_EQ(field("experts").ids.first[1], 0);
  EXPECT_EQ(std::string(field("weights").text.bytes, field("weights").text.kept), "0.982 0.01799");
  EXPECT_NEAR(field("rest").f, 2 / (std::exp(4.0) + 3), 1e-6);
  EXPECT_EQ(field("margin").f, 0);  // a tie, decided by id
}

}  // namespace
}  // namespace cutaway::ops
