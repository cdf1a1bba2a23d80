// Invariants 1 and 2 on the default model, through the public API: one logits_hash, whatever the
// threads, the chunks of the prompt, the trace level, or what the session held before. Skipped, and
// said, where the model is not installed.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>

#include "cutaway/engine.h"
#include "cutaway/model_store.h"

namespace cutaway {
namespace {

constexpr const char* kModel = "smollm2-135m";

struct Setting {
  int threads = 2;
  int64_t chunk = 512;
  TraceLevel trace = TraceLevel::kOff;
  std::string isa = {};
  bool precise = false;
  std::optional<CacheType> cache = {};
};

GenerateRequest request(bool sampled) {
  GenerateRequest out;
  out.messages = Json::array({{{"role", "user"},
                               {"content",
                                "Describe the colour orange to someone who has never "
                                "been able to see. 한국어로도 한 문장 써 주세요. "
                                "Then list three fruits 🍊 and say why they are loved."}}});
  out.max_tokens = 24;
  if (sampled) {
    out.sampling.temperature = 0.9;
    out.sampling.top_k = 50;
    out.sampling.top_p = 0.95;
    out.sampling.repeat_penalty = 1.1;
    out.sampling.seed = 20240229;
  }
  return out;
}

class RealModel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ModelStore().resolve(kModel).ok()) {
      GTEST_SKIP() << kModel << " is not installed: cutaway pull " << kModel;
    }
  }

  static Generation run(const Setting& setting, bool sampled) {
    auto engine = Engine::create({setting.threads, setting.isa});
    EXPECT_TRUE(engine.ok()) << engine.error().message;
    if (setting.trace != TraceLevel::kOff) {
      EXPECT_TRUE((*engine)->trace_to_file("/dev/null", setting.trace).ok());
    }
    auto model = (*engine)->load(kModel, {});
    EXPECT_TRUE(model.ok()) << model.error().message;
    SessionOptions options;
    options.prefill_chunk = setting.chunk;
    options.precise = setting.precise;
    options.cache_type = setting.cache;
    auto session = (*model)->start(options);
    EXPECT_TRUE(session.ok());
    auto generation = (*session)->generate(request(sampled), {});
    EXPECT_TRUE(generation.ok()) << generation.error().message;
    EXPECT_TRUE((*engine)->flush_trace().ok());
    return *generation;
  }
};

TEST_F(RealModel, OneHashForThreadsChunksAndTraceLevels) {
  for (const bool sampled : {false, true}) {
    const Generation first = run({}, sampled);
    EXPECT_EQ(first.tokens.size(), 24u);
    int settings = 0;
    for (const int threads : {1, 2, 3}) {
      for (const int64_t chunk : {1, 7, 64, 512}) {
        for (const TraceLevel trace :
             {TraceLevel::kOff, TraceLevel::kFunctions, TraceLevel::kTensors}) {
          const Generation again = run({threads, chunk, trace}, sampled);
          EXPECT_EQ(first.logits_hash, again.logits_hash)
              << threads << " threads, chunk " << chunk << ", trace " << static_cast<int>(trace);
          EXPECT_EQ(first.text, again.text);
          ++settings;
        }
      }
    }
    std::printf("%s: one logits_hash %s over %d settings\n", sampled ? "sampled" : "greedy",
                first.logits_hash.c_str(), settings);
  }
}

// Quantised pages round each key and value on its own, so nothing depends on how they came there.
TEST_F(RealModel, OneHashForThreadsAndChunksWithEveryCacheType) {
  for (const char* isa : {"avx2", "avx512", "neon"}) {
    if (!Engine::create({1, isa}).ok()) continue;
    std::set<std::string> hashes;
    for (const CacheType cache :
         {CacheType::kF32, CacheType::kF16, CacheType::kQ8, CacheType::kQ4}) {
      const Generation first = run({2, 512, TraceLevel::kOff, isa, false, cache}, true);
      EXPECT_EQ(first.tokens.size(), 24u);
      hashes.insert(first.logits_hash);
      const std::pair<int, int64_t> settings[] = {{1, 512}, {2, 1}, {3, 7}, {2, 64}};
      for (const auto& [threads, chunk] : settings) {
        const Generation again = run({threads, chunk, TraceLevel::kOff, isa, false, cache}, true);
        EXPECT_EQ(first.logits_hash, again.logits_hash)
            << isa << ", cache " << static_cast<int>(cache) << ", " << threads << " threads, chunk "
            << chunk;
      }
      std::printf("%s: one logits_hash %s with cache type %d\n", isa, first.logits_hash.c_str(),
                  static_cast<int>(cache));
    }
    EXPECT_EQ(hashes.size(), 4u) << "a cache type changes the bits";
  }
}

TEST_F(RealModel, ASeedIsARun) {
  auto engine = Engine::create({});
  auto model = (*engine)->load(kModel, {});
  auto session = (*model)->start({});
  GenerateRequest asked = request(true);
  std::set<std::string> texts;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    asked.sampling.seed = seed;
    auto one = (*session)->generate(asked, {});
    auto two = (*session)->generate(asked, {});
    ASSERT_TRUE(one.ok() && two.ok());
    EXPECT_EQ(one->logits_hash, two->logits_hash) << "the second reused the first one's pages";
    EXPECT_GT(two->usage.cached_tokens, 0);
    texts.insert(one->text);
  }
  EXPECT_GT(texts.size(), 1u) << "seeds differ, and so do texts";
}

TEST_F(RealModel, ALaterTurnEqualsTheSameConversationFromNothing) {
  auto engine = Engine::create({});
  auto model = (*engine)->load(kModel, {});
  auto session = (*model)->start({});
  auto turn = (*session)->generate(request(false), {});
  ASSERT_TRUE(turn.ok());
  GenerateRequest next = request(false);
  next.messages.push_back({{"role", "assistant"}, {"content", turn->text}});
  next.messages.push_back({{"role", "user"}, {"content", "Shorter, please."}});
  auto continued = (*session)->generate(next, {});
  auto fresh = (*(*model)->start({}))->generate(next, {});
  ASSERT_TRUE(continued.ok() && fresh.ok());
  EXPECT_GT(continued->usage.cached_tokens, 20);
  EXPECT_EQ(fresh->usage.cached_tokens, 0);
  EXPECT_EQ(continued->logits_hash, fresh->logits_hash);
}

TEST_F(RealModel, EveryTableChoosesTheTokensOfRef) {
  // Bits differ between tables (rounding happens in other places); f32 products are close enough
  // that greedy choices agree, and the chosen tokens' log-probabilities to four decimals.
  const Setting ref{2, 512, TraceLevel::kOff, "ref", true};
  const Generation a = run(ref, false);
  int compared = 0;
  for (const char* isa : {"avx2", "avx512", "neon"}) {
    if (!Engine::create({1, isa}).ok()) continue;
    ++compared;
    const Generation b = run({2, 512, TraceLevel::kOff, isa, true}, false);
    ASSERT_EQ(a.tokens.size(), b.tokens.size()) << isa;
    for (size_t i = 0; i < a.tokens.size(); ++i) {
      EXPECT_EQ(a.tokens[i].id, b.tokens[i].id) << isa;
      EXPECT_NEAR(a.tokens[i].logprob, b.tokens[i].logprob, 1e-4) << isa;
    }
  }
  if (compared == 0) GTEST_SKIP() << "no table but ref runs here";
}

}  // namespace
}  // namespace cutaway
