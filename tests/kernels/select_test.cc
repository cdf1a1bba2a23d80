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
}

// Every product of a table is its own: no entry of it is another table's by mistake.
TEST(SelectTable, TablesShareNoProduct) {
  const std::vector<const KernelTable*> tables = testing::runnable_tables();
  if (tables.size() == 1) GTEST_SKIP() << "this machine can run the ref table alone";
  for (const KernelTable* a : tables) {
    for (const KernelTable* b : tables) {
      if (a == b) continue;
      for (size_t i = 0; i < kLayoutCount; ++i) {
        EXPECT_NE(a->matmul_f32[i], b->matmul_f32[i]) << a->name << ' ' << b->name;
        if (a->matmul_q8[i] == nullptr) continue;
        EXPECT_NE(a->matmul_q8[i], b->matmul_q8[i]) << a->name << ' ' << b->name;
      }
      EXPECT_NE(a->attention_tile, b->attention_tile) << a->name << ' ' << b->name;
    }
  }
}

TEST(SelectTable, AnX86TableIsThereExactlyWhenTheProcessorHasWhatItNeeds) {
#if defined(__x86_64__)
  const CpuFeatures& cpu = cpu_features();
  const bool avx2 = cpu.avx2 && cpu.fma && cpu.f16c;
  EXPECT_EQ(avx2_table() != nullptr, avx2);
  EXPECT_EQ(avx512_table() != nullptr,
            avx2 && cpu.avx512f && cpu.avx512bw && cpu.avx512vl && cpu.avx512dq && cpu.avx512_vnni);
#else
  EXPECT_EQ(avx2_table(), nullptr);
  EXPECT_EQ(avx512_table(), nullptr);
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
