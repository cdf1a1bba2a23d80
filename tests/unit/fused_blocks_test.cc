// Fused forms give the bits of the steps that they fuse: a norm that quantises on the way, a
// product that is added to the residual stream as it is made.

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "formats/quantize_row.h"
#include "ops/blocks.h"

namespace cutaway::ops {
namespace {

class Recorder final : public trace::Probe {
 public:
  explicit Recorder(std::set<trace::Site> wanted) : wanted_(std::move(wanted)) {}
  bool wants(trace::Site site, int) const override { return wanted_.contains(site); }
  void observe(const trace::TapEvent& event) override {
    const TensorView& view = event.values;
    auto& values = seen[event.site];
    for (int64_t i = 0; i < view.rows(); ++i) {
      values.insert(values.end(), view.row(i), view.row(i) + view.row_elements());
    }
  }
  std::map<trace::Site, std::vector<float>> seen;

 private:
  std::set<trace::Site> wanted_;
};

struct Weight {
  std::vector<uint8_t> bytes;
  std::vector<float> bias;
  Linear linear;
};

std::vector<float> random_floats(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(rng);
  return out;
}

Weight random_weight(DType type, int64_t rows, int64_t cols, bool bias) {
  Weight w;
  const std::vector<float> values = random_floats(static_cast<size_t>(rows * cols), 7);
  std::vector<uint8_t> stored(dtype_bytes(type, static_cast<size_t>(rows * cols)));
  const size_t row_bytes = dtype_bytes(type, static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    formats::quantize_row(type, values.data() + r * cols, cols,
                          stored.data() + static_cast<size_t>(r) * row_bytes);
  }
  kernels::PackedMatrix& packed = w.linear.weight.packed;
  packed.layout = kernels::layout_for(type);
  packed.rows = rows;
  packed.cols = cols;
  w.bytes.resize(packed.bytes() + 64);
  uint8_t* aligned = w.bytes.data() + (64 - reinterpret_cast<uintptr_t>(w.bytes.data()) % 64) % 64;
  EXPECT_EQ(kernels::pack_groups(stored, type, rows, cols, {}, 0, packed.groups(), aligned), -1);
  packed.data = aligned;
  if (bias) {
    w.bias = random_floats(static_cast<size_t>(rows), 9);
    w.linear.bias = {w.bias.data(), rows};
  }
  return w;
}

struct Setting {
  DType type;
  int64_t tokens, rows, cols;
  int threads;
  bool bias;
};

class FusedBlocks : public ::testing::TestWithParam<Setting> {
 protected:
  FusedBlocks() : pool_(GetParam().threads) {
    selection_ = kernels::select_table("").value();
    kv::Sequence* none = nullptr;
    batch_.tokens.assign(static_cast<size_t>(GetParam().tokens), 0);
    batch_.slices.push_back({none, 0, 0, GetParam().tokens});
  }
  Pass pass(std::span<trace::Probe* const> probes = {}) {
    return {*selection_.table, pool_, scratch_, batch_, false, probes};
  }
  static Rows copy(Pass& pass, const std::vector<float>& values, int64_t n, int64_t d) {
    const Rows rows = pass.make(n, d);
    std::memcpy(rows.data, values.data(), values.size() * sizeof(float));
    return rows;
  }
  static std::vector<float> values(const Rows& rows) {
    return {rows.data, rows.data + rows.n * rows.d};
  }

  kernels::Selection selection_;
  ThreadPool pool_;
  Scratch scratch_;
  Batch batch_;
};

TEST_P(FusedBlocks, a_product_onto_the_residual_is_product_then_addition) {
  const Setting& s = GetParam();
  const Weight w = random_weight(s.type, s.rows, s.cols, s.bias);
  const auto x = random_floats(static_cast<size_t>(s.tokens * s.cols), 1);
  const auto before = random_floats(static_cast<size_t>(s.tokens * s.rows), 2);

  Pass plain = pass();
  const Rows residual = copy(plain, before, s.tokens, s.rows);
  const Rows out = plain.make(s.tokens, s.rows);
  project_one(plain, copy(plain, x, s.tokens, s.cols), w.linear, out);
  add_residual(plain, kAfterAttention, 0, residual, out);

  const Rows fused = copy(plain, before, s.tokens, s.rows);
  project_onto(plain, kAfterAttention, 0, copy(plain, x, s.tokens, s.cols), w.linear, fused);
  EXPECT_EQ(values(fused), values(residual));

  Recorder recorder({trace::Site::kAttnOut, trace::Site::kResidMid});
  trace::Probe* const probes[] = {&recorder};
  Pass watched = pass(probes);
  const Rows again = copy(watched, before, s.tokens, s.rows);
  project_onto(watched, kAfterAttention, 0, copy(watched, x, s.tokens, s.cols), w.linear, again);
  EXPECT_EQ(values(again), values(residual));
  EXPECT_EQ(recorder.seen[trace::Site::kAttnOut], values(out));
  EXPECT_EQ(recorder.seen[trace::Site::kResidMid], values(residual));
}

TEST_P(FusedBlocks, a_norm_that_quantises_gives_what_the_product_would_have_quantised) {
  const Setting& s = GetParam();
  const Weight w = random_weight(s.type, s.rows, s.cols, s.bias);
  const auto x = random_floats(static_cast<size_t>(s.tokens * s.cols), 3);
  const auto norm = random_floats(static_cast<size_t>(s.cols), 4);
  const Vector weight{norm.data(), s.cols};
  const Linear* const readers[] = {&w.linear};

  Pass plain = pass();
  const Rows rows = copy(plain, x, s.tokens, s.cols);
  const Input apart = rms_norm(plain, kNorm1, 0, rows, weight, 1e-5f);
  const Input fused = rms_norm(plain, kNorm1, 0, rows, weight, 1e-5f, readers);
  EXPECT_EQ(apart.q8.q, nullptr);
  EXPECT_EQ(fused.q8.q != nullptr, takes_q8(plain, w.linear.weight));
  EXPECT_EQ(values(fused.floats), values(apart.floats));

  const Rows a = plain.make(s.tokens, s.rows), b = plain.make(s.tokens, s.rows);
  project_one(plain, apart, w.linear, a);
  project_one(plain, fused, w.linear, b);
  EXPECT_EQ(values(a), values(b));
}

INSTANTIATE_TEST_SUITE_P(Settings, FusedBlocks,
                         ::testing::Values(Setting{DType::kQ4_0, 1, 576, 576, 1, false},
                                           Setting{DType::kQ4_1, 5, 48, 96, 2, true},
                                           Setting{DType::kQ8_0, 70, 1000, 64, 2, true},
                                           Setting{DType::kF16, 33, 40, 50, 2, false},
                                           Setting{DType::kF32, 130, 17, 33, 1, true}),
                         [](const auto& info) {
                           return std::string(dtype_name(info.param.type)) + "_" +
                                  std::to_string(info.param.tokens);
                         });

}  // namespace
}  // namespace cutaway::ops
