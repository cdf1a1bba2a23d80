#include <gtest/gtest.h>

#include "base/cpu_features.h"
#include "tests/kernels/kernels_testing.h"

namespace cutaway::kernels {
namespace {

TEST(SelectTable, TheBestAvailableIsChosen) {
  const auto selection = select_table("");
  ASSERT_TRUE(selection.ok());
  int chosen = 0;
  bool seen_available = false;
  for (const TableChoice& choice : selection->choices) {
    EXPECT_FALSE(choice.reason.empty()) << choice.name;
    chosen += choice.chosen ? 1 : 0;
    if (choice.chosen) {
      EXPECT_EQ(choice.name, selection->table->name);
      EXPECT_EQ(choice.reason, "chosen");
      EXPECT_FALSE(seen_available) << "an available table stands before the chosen one";
    }
    seen_available |= choice.available;
  }
  EXPECT_EQ(chosen, 1);
  EXPECT_EQ(selection->choices.back().name, "ref");
  EXPECT_TRUE(selection->choices.back().available);
}

// A forced name must be the table that runs: its entries are that table's own functions.
TEST(SelectTable, AForcedTableTakesEffect) {
  for (const KernelTable* table : testing::runnable_tables()) {
    const auto selection = select_table(table->name);
    ASSERT_TRUE(selection.ok()) << selection.error().message;
    EXPECT_EQ(selection->table, table);
    EXPECT_STREQ(selection->table->name, table->name);
    for (const TableChoice& choice : selection->choices) {
      EXPECT_EQ(choice.chosen, choice.name == table->name) << choice.name;
    }
  }
  const KernelTable* avx2 = avx2_table();
  if (avx2 == nullptr) GTEST_SKIP() << "this machine cannot run the avx2 table";
  const KernelTable* ref = ref_table();
  for (size_t i = 0; i < kLayoutCount; ++i) {
    EXPECT_NE(avx2->matmul_f32[i], ref->matmul_f32[i]);
    if (ref->matmul_q8[i] != nullptr) {
      EXPECT_NE(avx2->matmul_q8[i], ref->matmul_q8[i]);
    }
  }
  EXPECT_NE(avx2->attention_tile, ref->attention_tile);
}

TEST(SelectTable, Avx2IsThereExactlyWhenTheProcessorHasIt) {
#if defined(__x86_64__)
  const CpuFeatures& cpu = cpu_features();
  EXPECT_EQ(avx2_table() != nullptr, cpu.avx2 && cpu.fma && cpu.f16c);
#else
  EXPECT_EQ(avx2_table(), nullptr);
#endif
}

TEST(SelectTable, AnUnknownNameIsAnErrorThatNamesTheOthers) {
  for (const char* name : {"AVX2", "sse", " ", "avx"}) {
    const auto selection = select_table(name);
    ASSERT_FALSE(selection.ok()) << name;
    EXPECT_EQ(selection.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(selection.error().field, "CUTAWAY_FORCE_ISA");
    EXPECT_NE(selection.error().message.find("avx512, avx2, neon, ref"), std::string::npos)
        << selection.error().message;
    EXPECT_NE(selection.error().message.find('"' + std::string(name) + '"'), std::string::npos);
  }
}

TEST(SelectTable, AnUnavailableTableIsAnErrorThatSaysWhy) {
  const auto all = select_table("");
  ASSERT_TRUE(all.ok());
  int unavailable = 0;
  for (const TableChoice& choice : all->choices) {
    if (choice.available) continue;
    ++unavailable;
    const auto selection = select_table(choice.name);
    ASSERT_FALSE(selection.ok()) << choice.name;
    EXPECT_EQ(selection.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(selection.error().message.find(choice.reason), std::string::npos);
    EXPECT_NE(selection.error().message.find("ref"), std::string::npos);
  }
  EXPECT_GE(unavailable, 1);  // no target has both avx512 and neon
}

}  // namespace
}  // namespace cutaway::kernels
