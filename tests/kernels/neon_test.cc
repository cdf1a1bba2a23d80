// The NEON table is there exactly where it can run, and is what runs there. CTest starts this twice
// under the emulator: as a processor that has the dot product, and as one that has not.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/cpu_features.h"
#include "tests/kernels/kernels_testing.h"

namespace cutaway::kernels {
namespace {

TEST(NeonTable, IsThereExactlyWhenTheProcessorHasWhatItNeeds) {
  const CpuFeatures& cpu = cpu_features();
  EXPECT_EQ(neon_table() != nullptr, cpu.neon && cpu.dotprod);
  const auto selection = select_table("");
  ASSERT_TRUE(selection.ok());
  for (const TableChoice& choice : selection->choices) {
    if (choice.name != "neon" || choice.available) continue;
#if defined(__aarch64__)
    EXPECT_EQ(choice.reason, "the processor has no dotprod");
#else
    EXPECT_EQ(choice.reason, "not built for this target");
#endif
  }
}

// CTest says which table the processor that it starts must get.
TEST(NeonTable, IsChosenWhereItIsThere) {
  const auto selection = select_table("");
  ASSERT_TRUE(selection.ok());
  const char* expected = std::getenv("CUTAWAY_EXPECTED_TABLE");
  if (expected == nullptr) GTEST_SKIP() << "no emulated processor: the machine's own was chosen";
  EXPECT_STREQ(selection->table->name, expected);
}

TEST(NeonTable, SharesNoEntryWithRef) {
  const KernelTable* neon = neon_table();
  if (neon == nullptr) GTEST_SKIP() << "this machine cannot run the neon table";
  const auto forced = select_table("neon");
  ASSERT_TRUE(forced.ok());
  EXPECT_EQ(forced->table, neon);
  const KernelTable* ref = ref_table();
  for (size_t i = 0; i < kLayoutCount; ++i) {
    EXPECT_NE(neon->matmul_f32[i], ref->matmul_f32[i]) << i;
    EXPECT_EQ(neon->matmul_q8[i] == nullptr, ref->matmul_q8[i] == nullptr) << i;
    if (ref->matmul_q8[i] != nullptr) {
      EXPECT_NE(neon->matmul_q8[i], ref->matmul_q8[i]) << i;
    }
  }
  EXPECT_NE(neon->quantize_q8, ref->quantize_q8);
  EXPECT_NE(neon->rms_norm, ref->rms_norm);
  EXPECT_NE(neon->rope, ref->rope);
  EXPECT_NE(neon->add, ref->add);
  EXPECT_NE(neon->silu_mul, ref->silu_mul);
  EXPECT_NE(neon->gelu_mul, ref->gelu_mul);
  EXPECT_NE(neon->soft_cap, ref->soft_cap);
  EXPECT_NE(neon->store_key, ref->store_key);
  EXPECT_NE(neon->store_value, ref->store_value);
  EXPECT_NE(neon->attention_tile, ref->attention_tile);
  EXPECT_NE(neon->attention_merge, ref->attention_merge);
  EXPECT_NE(neon->attention_finish, ref->attention_finish);
}

// The forced table did the work: its fused steps round once where ref rounds twice, so that some of
// many products differ in their last bits.
TEST(NeonTable, AForcedTableComputesByItsOwnSteps) {
  if (neon_table() == nullptr) GTEST_SKIP() << "this machine cannot run the neon table";
  constexpr int64_t kCols = 577;
  std::mt19937 random(1);
  const std::vector<uint8_t> stored = testing::random_weights(DType::kF32, 16, kCols, random);
  const testing::Packed packed = testing::pack(stored, DType::kF32, 16, kCols);
  std::vector<float> x(kCols), fused(16), stepwise(16);
  for (float& value : x) value = std::normal_distribution<float>(0, 1)(random);
  const auto layout = static_cast<size_t>(packed.matrix.layout);
  const auto neon = select_table("neon");
  const auto ref = select_table("ref");
  ASSERT_TRUE(neon.ok() && ref.ok());
  neon->table->matmul_f32[layout](packed.matrix, 0, 1, x.data(), kCols, 1, fused.data(), 16);
  ref->table->matmul_f32[layout](packed.matrix, 0, 1, x.data(), kCols, 1, stepwise.data(), 16);
  EXPECT_NE(fused, stepwise);
}

}  // namespace
}  // namespace cutaway::kernels
