// Captures: what a selection keeps is what the whole capture has there, in memory and in a file,
// for every architecture; and the standing form is the head of the pattern.
#include "inspect/capture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>

#include "arch/architecture.h"
#include "tests/golden/safetensors.h"
#include "tests/support/tiny_cases.h"

namespace cutaway::inspect {
namespace {

constexpr int64_t kTokens = 90;

std::vector<int32_t> prompt() { return testing::tiny_prompt(kTokens); }

class Captures : public ::testing::TestWithParam<const arch::Architecture*> {
 protected:
  void SetUp() override {
    std::string error;
    model_ = testing::tiny_model(*GetParam(), GetParam()->tiny_configs().front(), DType::kQ8_0,
                                 pool_, true, &error);
    ASSERT_NE(model_, nullptr) << error;
    auto selection = kernels::select_table("");
    ASSERT_TRUE(selection.ok());
    const arch::ModelShape& m = model_->shape();
    pages_ = std::make_unique<kv::PagePool>(
        kv::Geometry{m.n_layers, m.n_kv_heads, m.d_head, m.d_head, kernels::KvType::kF16}, 8);
    runner_ = std::make_unique<inference::Runner>(*model_, *selection->table, pool_, false);
  }

  CaptureJob job(const trace::TapQuery& query, int64_t chunk) {
    CaptureJob out;
    auto selection = select_taps(query, model_->shape());
    EXPECT_TRUE(selection.ok()) << selection.error().message;
    out.selection = *selection;
    out.range = *out.selection.range_of_text(kTokens);
    out.chunk = chunk;
    return out;
  }
  MemoryCapture capture(const CaptureJob& job) {
    auto out = capture_in_memory(*runner_, *pages_, prompt(), job);
    EXPECT_TRUE(out.ok()) << out.error().message;
    return std::move(*out);
  }

  ThreadPool pool_{2};
  std::shared_ptr<const model::LoadedModel> model_;
  std::unique_ptr<kv::PagePool> pages_;
  std::unique_ptr<inference::Runner> runner_;
};

int64_t elements(const CapturedTap& tap) {
  return std::accumulate(tap.shape.begin(), tap.shape.end(), int64_t{1}, std::multiplies<>());
}

// Element `index` of a tap of the whole capture that element i of the selection's tap is.
int64_t whole_index(const CapturedTap& part, const CapturedTap& whole, int64_t i,
                    const CaptureJob& job, const std::vector<int32_t>& units) {
  std::vector<int64_t> at(part.shape.size());
  for (size_t d = part.shape.size(); d-- > 0; i /= part.shape[d]) at[d] = i % part.shape[d];
  const bool map = part.name.ends_with("hook_attn_scores") || part.name.ends_with("hook_pattern");
  const size_t head_dim = map ? 1 : 2, row_dim = map ? 2 : 1;
  at[row_dim] += job.range.begin;
  if (part.shape.size() > head_dim && part.shape[head_dim] != whole.shape[head_dim]) {
    at[head_dim] = units[static_cast<size_t>(at[head_dim])];
  }
  int64_t out = 0;
  for (size_t d = 0; d < at.size(); ++d) out = out * whole.shape[d] + at[d];
  return out;
}

TEST_P(Captures, ASelectionIsPartOfTheWhole) {
  const arch::ModelShape& m = model_->shape();
  const MemoryCapture whole = capture(job({{"all"}, "", "", "", ""}, kTokens));
  std::map<std::string, const CapturedTap*> by_name;
  for (const CapturedTap& tap : whole.outcome.taps) by_name[tap.name] = &tap;
  const std::string last_head = std::to_string(m.n_heads - 1);
  for (const int64_t chunk : {int64_t{1}, int64_t{16}, kTokens}) {
    for (const std::string heads : {std::string(), std::string("0"), last_head}) {
      for (const std::string positions : {"", "70:83", "-1", "0:5"}) {
        const CaptureJob part_job = job({{"all"}, "0", heads, positions, ""}, chunk);
        const MemoryCapture part = capture(part_job);
        ASSERT_GT(part.outcome.taps.size(), 20u);
        for (const CapturedTap& tap : part.outcome.taps) {
          const CapturedTap& all = *by_name.at(tap.name);
          std::vector<int32_t> units = part_job.selection.heads;
          const bool of_keys = tap.name.ends_with("hook_k") || tap.name.ends_with("hook_rot_k") ||
                               tap.name.ends_with("hook_v");
          for (int32_t& unit : units) {
            if (of_keys) unit /= static_cast<int32_t>(m.n_heads / m.n_kv_heads);
          }
          const auto* a = static_cast<const float*>(tap.data);
          const auto* b = static_cast<const float*>(all.data);
          for (int64_t i = 0; i < elements(tap); ++i) {
            const int64_t j = whole_index(tap, all, i, part_job, units);
            ASSERT_EQ(std::memcmp(a + i, b + j, sizeof(float)), 0)
                << tap.name << " element " << i << ", heads " << heads << ", positions "
                << positions << ", chunks of " << chunk;
          }
        }
      }
    }
  }
}

TEST_P(Captures, UsedMemoryHoldsTheSameValues) {
  for (const std::string positions : {"", "3:77"}) {
    const CaptureJob all = job({{"all"}, "", "", positions, ""}, 64);
    const MemoryCapture fresh = capture(all);
    MemoryCapture used = capture(all);
    const float* const memory = used.data;
    std::fill_n(used.data, used.floats, 7.0f);
    auto again = capture_in_memory(*runner_, *pages_, prompt(), all, {}, std::move(used));
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(again->data, memory);
    ASSERT_EQ(again->floats, fresh.floats);
    for (size_t i = 0; i < fresh.outcome.taps.size(); ++i) {
      const CapturedTap &a = fresh.outcome.taps[i], &b = again->outcome.taps[i];
      EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(elements(a)) * sizeof(float)), 0)
          << a.name;
    }
    // Much less is wanted: the large memory is not held for it.
    auto little = capture_in_memory(*runner_, *pages_, prompt(),
                                    job({{"logits"}, "", "", "-1", ""}, 64), {}, std::move(*again));
    ASSERT_TRUE(little.ok()) << little.error().message;
    EXPECT_EQ(little->floats, model_->shape().vocab);
  }
}

TEST_P(Captures, ACancelledCaptureSaysSoAndLeavesNothing) {
  const std::string path =
      ::testing::TempDir() + "cutaway_cancelled_" + std::string(GetParam()->name) + ".safetensors";
  for (const int64_t chunk : {kTokens, int64_t{32}}) {  // one pass; several
    for (const int answers : {1, 2}) {
      CaptureJob stopped = job({{"z"}, "", "", "", ""}, chunk);
      int asked = 0;
      stopped.cancelled = [&] { return ++asked >= answers; };
      const auto outcome = inspect::capture(*runner_, *pages_, prompt(), stopped, path);
      ASSERT_FALSE(outcome.ok()) << chunk << " " << answers;
      EXPECT_EQ(outcome.error().code, ErrorCode::kCancelled);
      EXPECT_FALSE(std::filesystem::exists(path));
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator(::testing::TempDir())) {
    EXPECT_FALSE(entry.path().string().starts_with(path)) << entry.path();
  }
}

TEST_P(Captures, AFileHasWhatMemoryHas) {
  const std::string path =
      ::testing::TempDir() + "cutaway_capture_" + std::string(GetParam()->name) + ".safetensors";
  CaptureJob file_job = job({{"all"}, "", "0", "3:77", ""}, 32);
  file_job.top = 4;
  const MemoryCapture memory = capture(file_job);
  auto outcome = inspect::capture(*runner_, *pages_, prompt(), file_job, path);
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  const auto file = testing::read_safetensors(path);
  std::filesystem::remove(path);
  EXPECT_EQ(file.size(), memory.outcome.taps.size());
  for (const CapturedTap& tap : memory.outcome.taps) {
    const testing::SafeTensor& stored = file.at(tap.name);
    ASSERT_EQ(static_cast<int64_t>(stored.elements()), elements(tap)) << tap.name;
    EXPECT_EQ(std::memcmp(stored.floats(), tap.data, stored.elements() * sizeof(float)), 0)
        << tap.name;
  }
  // The standing form alone takes memory too, and takes it again.
  file_job.selection.taps.clear();
  MemoryCapture standing = capture(file_job);
  ASSERT_EQ(standing.outcome.taps.size(), static_cast<size_t>(4 * model_->shape().n_layers));
  for (int i = 0; i < 2; ++i) {
    for (const CapturedTap& tap : standing.outcome.taps) {
      const testing::SafeTensor& stored = file.at(tap.name);
      EXPECT_EQ(std::memcmp(stored.floats(), tap.data, stored.elements() * sizeof(float)), 0)
          << tap.name;
    }
    std::fill_n(standing.data, standing.floats, 7.0f);
    auto again = capture_in_memory(*runner_, *pages_, prompt(), file_job, {}, std::move(standing));
    ASSERT_TRUE(again.ok()) << again.error().message;
    standing = std::move(*again);
  }
}

// Of every row: the largest of the pattern with their keys, what the others add up to (within the
// rounding of k subtractions), and −Σ p·ln p (of 90 rounded terms of at most 1/e).
TEST_P(Captures, TheStandingFormIsTheHeadOfThePattern) {
  const arch::ModelShape& m = model_->shape();
  const MemoryCapture whole = capture(job({{"pattern"}, "", "", "", ""}, kTokens));
  const std::string path =
      ::testing::TempDir() + "cutaway_top_" + std::string(GetParam()->name) + ".safetensors";
  for (const int64_t chunk : {int64_t{1}, int64_t{32}, kTokens}) {
    CaptureJob top_job = job({{}, "", "", "", ""}, chunk);
    top_job.top = 5;
    auto outcome = inspect::capture(*runner_, *pages_, prompt(), top_job, path);
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    const auto file = testing::read_safetensors(path);
    std::filesystem::remove(path);
    for (int64_t layer = 0; layer < m.n_layers; ++layer) {
      const auto* pattern =
          static_cast<const float*>(whole.outcome.taps[static_cast<size_t>(layer)].data);
      const std::string prefix = "blocks." + std::to_string(layer) + ".attn.";
      const float* probs = file.at(prefix + "top_probs").floats();
      const int32_t* keys = file.at(prefix + "top_keys").ints();
      const float* rest = file.at(prefix + "top_rest").floats();
      const float* entropy = file.at(prefix + "entropy").floats();
      for (int64_t row = 0; row < m.n_heads * kTokens; ++row, pattern += kTokens) {
        std::vector<int32_t> order(kTokens);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return pattern[a] > pattern[b]; });
        double others = 1, sum = 0;
        for (int64_t j = 0; j < top_job.top; ++j) {
          const int32_t key = order[static_cast<size_t>(j)];
          const bool there = pattern[key] > 0;
          ASSERT_EQ(keys[row * top_job.top + j], there ? key : -1) << prefix << row;
          ASSERT_EQ(probs[row * top_job.top + j], pattern[key]) << prefix << row;
          others -= static_cast<double>(pattern[key]);
        }
        for (int64_t k = 0; k < kTokens; ++k) {
          const auto p = static_cast<double>(pattern[k]);
          if (p > 0) sum -= p * std::log(p);
        }
        ASSERT_NEAR(rest[row], std::max(others, 0.0), 1e-6) << prefix << row;
        ASSERT_NEAR(entropy[row], sum, 2e-5) << prefix << row;
      }
    }
  }
}

std::vector<const arch::Architecture*> every() {
  std::vector<const arch::Architecture*> out;
  for (const arch::Architecture& architecture : arch::architectures()) out.push_back(&architecture);
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, Captures, ::testing::ValuesIn(every()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace cutaway::inspect
