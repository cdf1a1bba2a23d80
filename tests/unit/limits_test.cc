// bench's arithmetic: what a token costs, and what the machine allows.
#include "api/limits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "cutaway/engine.h"
#include "kernels/probe.h"

namespace cutaway::api {
namespace {

using kernels::Layout;
using kernels::PackedMatrix;

PackedMatrix matrix(Layout layout, int64_t rows, int64_t cols) {
  PackedMatrix out;
  out.layout = layout;
  out.rows = rows;
  out.cols = cols;
  return out;
}

// Two layers' matrices that take 8-bit activations, a head that takes floats.
arch::Products products() {
  return {{matrix(Layout::kNibble, 32, 64), matrix(Layout::kByte, 20, 64)},
          matrix(Layout::kFloat, 48, 64),
          {}};
}
// 16 rows × 32 columns: a nibble block is 2 × 16 + 256 bytes, a byte block 2 × 16 + 512.
constexpr double kLayerBytes = 2 * 2 * 288 + 2 * 2 * 544, kHeadBytes = 48 * 64 * 4;
constexpr double kLayerOps = 2 * (32 + 20) * 64, kHeadOps = 2 * 48 * 64;

TEST(CostModel, DecodeReadsEveryMatrixOnceAStepAndTheCacheOfEverySequence) {
  const CostModel costs(products(), *kernels::ref_table(), false, 10);
  const TokenCost one = costs.decode(4, 1, 100);
  EXPECT_DOUBLE_EQ(one.bytes, kLayerBytes + kHeadBytes + 10 * 102.5);  // 101, 102, 103, 104
  EXPECT_DOUBLE_EQ(one.q8_ops, kLayerOps);
  EXPECT_DOUBLE_EQ(one.f32_ops, kHeadOps);
  const TokenCost four = costs.decode(1, 4, 7);
  EXPECT_DOUBLE_EQ(four.bytes, (kLayerBytes + kHeadBytes) / 4 + 10 * 8);
  EXPECT_DOUBLE_EQ(four.ops(), one.ops());
}

TEST(CostModel, PrefillReadsEveryMatrixOnceAPassAndTheHeadOnce) {
  const CostModel costs(products(), *kernels::ref_table(), false, 10);
  const TokenCost cost = costs.prefill(100, 64);  // passes of 64 and 36
  EXPECT_DOUBLE_EQ(cost.bytes, (2 * kLayerBytes + kHeadBytes + 10 * (64 + 100)) / 100);
  EXPECT_DOUBLE_EQ(cost.q8_ops, kLayerOps);
  EXPECT_DOUBLE_EQ(cost.f32_ops, kHeadOps / 100);
}

TEST(CostModel, OfExpertsATokenCostsThoseItMeets) {
  arch::Products mixture = products();
  mixture.experts = {{matrix(Layout::kNibble, 16, 32), 8, 2}};  // 288 bytes each, 2 of 8 a token
  const CostModel costs(mixture, *kernels::ref_table(), false, 0);
  constexpr double kOps = kLayerOps + 2 * 2 * 16 * 32;
  constexpr double kAlways = kLayerBytes + kHeadBytes, kExperts = 8 * 288;
  const TokenCost one = costs.decode(1, 1, 1);
  EXPECT_DOUBLE_EQ(one.bytes, kAlways + kExperts / 4);
  EXPECT_DOUBLE_EQ(one.q8_ops, kOps);
  // Two tokens meet 8 · (1 − (3/4)²) experts; a long chunk meets them all.
  EXPECT_DOUBLE_EQ(costs.decode(1, 2, 1).bytes, (kAlways + kExperts * 7 / 16) / 2);
  EXPECT_NEAR(costs.prefill(512, 512).bytes, (kAlways + kExperts) / 512, 1e-6);
  EXPECT_DOUBLE_EQ(costs.prefill(2, 1).bytes,
                   (2 * kLayerBytes + 2 * kExperts / 4 + kHeadBytes) / 2);
}

TEST(CostModel, PreciseComputesInFloats) {
  const CostModel costs(products(), *kernels::ref_table(), true, 0);
  EXPECT_EQ(costs.decode(1, 1, 1).q8_ops, 0);
  EXPECT_DOUBLE_EQ(costs.decode(1, 1, 1).f32_ops, kLayerOps + kHeadOps);
}

TEST(TokenCost, TheLimitOfTwoKindsIsThatOfTheirTimes) {
  MachineLimits limits;
  limits.int8_gops = 10;
  limits.f32_gops = 5;
  EXPECT_DOUBLE_EQ((TokenCost{0, 7, 0}.limit_gops(limits)), 10);
  EXPECT_DOUBLE_EQ((TokenCost{0, 0, 7}.limit_gops(limits)), 5);
  EXPECT_DOUBLE_EQ((TokenCost{0, 100, 100}.limit_gops(limits)), 200.0 / 30);
  EXPECT_EQ((TokenCost{}.limit_gops(limits)), 0);
}

TEST(MachineLimits, TheHigherOfEachIsKept) {
  MachineLimits a, b;
  a.read.gbps = 3, a.int8_gops = 8, a.f32_gops = 1;
  b.read.gbps = 5, b.int8_gops = 2, b.f32_gops = 4;
  b.probe = &kernels::kRefProbe;
  a.keep_better(b);
  EXPECT_EQ(a.read.gbps, 5);
  EXPECT_EQ(a.int8_gops, 8);
  EXPECT_EQ(a.f32_gops, 4);
  EXPECT_EQ(a.to_json().at("int8_instructions"), "plain C++");
}

TEST(Probes, EveryTableOfThisMachineHasItsOwnAndCountsItsWork) {
  const auto selection = kernels::select_table("");
  ASSERT_TRUE(selection.ok());
  for (const kernels::TableChoice& choice : selection->choices) {
    if (!choice.available) continue;
    const auto forced = kernels::select_table(choice.name);
    ASSERT_TRUE(forced.ok());
    const kernels::ArithmeticProbe& probe = kernels::arithmetic_probe(*forced->table);
    EXPECT_EQ(probe.table, choice.name);
    for (const auto loop : {probe.int8, probe.f32}) {
      EXPECT_EQ(loop(0), 0);
      EXPECT_GT(loop(1), 0);
      EXPECT_EQ(loop(1000), 1000 * loop(1));
    }
  }
}

TEST(Probes, LimitsAreMeasuredWithAnyNumberOfThreads) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const auto limits = measure_limits(*kernels::ref_table(), pool, 1'000'000);
    ASSERT_TRUE(limits.ok());
    for (const char* key : {"read_gbps", "int8_gops", "f32_gops", "read_buffer_bytes"}) {
      EXPECT_GT(limits->to_json().at(key).get<double>(), 0) << key;
    }
  }
}

// Bytes that a token reads, against what loading counted: with a tied head everything that is
// packed, else all but the embedding (which gives one row).
TEST(Bench, BytesPerTokenAreThoseOfTheMatricesThatATokenMultiplies) {
  const auto engine = Engine::create({.threads = 1, .force_isa = "ref"});
  ASSERT_TRUE(engine.ok());
  const auto bytes_of = [&](const std::string& name) {
    const auto model =
        (*engine)->load(std::string(CUTAWAY_SOURCE_DIR) + "/tests/golden/" + name, {});
    EXPECT_TRUE(model.ok());
    BenchRequest request;
    request.prefill = 0;
    request.decode = 1;
    request.repetitions = 1;
    request.limits = false;
    const auto measured = bench(**model, request, {});
    EXPECT_TRUE(measured.ok());
    const Json info = (*model)->info(false);
    const double cache = 2.0 * info.at("kv_bytes_per_token").at("f16").get<double>();
    return std::tuple(measured->at("runs")[0].at("bytes_per_token").get<double>() - cache,
                      info.at("packed_bytes").get<double>(), info);
  };
  const auto [tied, tied_packed, tied_info] = bytes_of("llama-gqa3-tied.gguf");
  const auto [untied, untied_packed, untied_info] = bytes_of("llama-mha.gguf");
  // Norms and biases are packed too, and are too small to count.
  const auto vectors = [](const Json& info) {
    return 4.0 * info.at("d_model").get<double>() * (2 * info.at("layers").get<double>() + 1);
  };
  EXPECT_NEAR(tied, tied_packed - vectors(tied_info), 4096);
  const double rows = std::ceil(untied_info.at("vocab").get<double>() / 16) * 16;
  const double embedding = rows * untied_info.at("d_model").get<double>() * 4;
  EXPECT_NEAR(untied, untied_packed - vectors(untied_info) - embedding, 4096);
  EXPECT_GT(embedding, 2 * 4096);  // that it is left out is seen
}

TEST(Bench, EndsBetweenRepetitionsAndReturnsWhatThereIs) {
  const auto engine = Engine::create({.threads = 1, .force_isa = "ref"});
  ASSERT_TRUE(engine.ok());
  const auto model =
      (*engine)->load(std::string(CUTAWAY_SOURCE_DIR) + "/tests/golden/llama-gqa3-tied.gguf", {});
  ASSERT_TRUE(model.ok());
  BenchRequest request;
  request.prefill = 8;
  request.decode = 4;
  request.depth = {0, 16};
  request.repetitions = 2;
  request.limits = false;
  std::vector<std::string> seen;
  request.progress = [&](const Progress& at) {
    if (seen.empty() || seen.back() != at.what) seen.push_back(at.what);
    EXPECT_EQ(at.total, 2u);
    return at.what != "tg4@16";
  };
  const auto measured = bench(**model, request, {});
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(seen, (std::vector<std::string>{"pp8", "tg4", "tg4@16"}));
  EXPECT_TRUE(measured->at("cancelled").get<bool>());
  ASSERT_EQ(measured->at("runs").size(), 2u);
  EXPECT_EQ(measured->at("runs")[1].at("test"), "tg4");
  EXPECT_FALSE(measured->contains("limits"));
  EXPECT_FALSE(measured->at("runs")[0].contains("limit_gbps"));
}

}  // namespace
}  // namespace cutaway::api
