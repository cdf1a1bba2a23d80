// Invariant 1 with live readers: the answer is the same, bit for bit, with none, one and eight of
// them, however slowly they read and whenever they come and go.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "cutaway/engine.h"
#include "cutaway/model_store.h"

namespace cutaway {
namespace {

using std::chrono::milliseconds;

constexpr const char* kTiny = CUTAWAY_SOURCE_DIR "/tests/golden/llama-mqa.gguf";

GenerateRequest request(bool sampled, int64_t tokens) {
  GenerateRequest out;
  out.prompt = "Once upon a time there was a hat";
  out.max_tokens = tokens;
  out.top_logprobs = 2;
  out.sampling.temperature = sampled ? 1.1 : 0;
  if (sampled) {
    out.sampling.seed = 7;
    out.sampling.top_p = 0.9;
  }
  return out;
}

struct Seen {
  std::atomic<int64_t> lines{0}, gaps{0};
  std::atomic<int> watching{0};  // readers that have begun
};

// Reads a line, rests, and every so often leaves and comes back.
void read_slowly(Engine& engine, int number, const std::atomic<bool>& done, Seen& seen) {
  const auto level = static_cast<TraceLevel>(1 + number % 3);
  for (bool first = true; !done; first = false) {
    const auto stream = engine.watch({"", level, 32, 1 << 15});
    seen.watching += first;
    for (int i = 0; i < 20 + 10 * number && !done; ++i) {
      for (const auto& line : stream->next(1, milliseconds(5)).lines) {
        ++seen.lines;
        seen.gaps += line->find("\"trace.dropped\"") != std::string::npos;
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
}

void expect_one_answer(const std::string& path, int64_t tokens) {
  for (const bool sampled : {false, true}) {
    std::string expected;
    for (const int readers : {0, 1, 8}) {
      const auto engine = Engine::create({});
      ASSERT_TRUE(engine.ok());
      const auto model = (*engine)->load(path, {});
      ASSERT_TRUE(model.ok()) << model.error().message;
      std::atomic<bool> done{false};
      Seen seen;
      std::vector<std::thread> threads;
      for (int i = 0; i < readers; ++i) {
        threads.emplace_back([&, i] { read_slowly(**engine, i, done, seen); });
      }
      while (seen.watching < readers) std::this_thread::sleep_for(milliseconds(1));
      for (int round = 0; round < 3; ++round) {
        const auto session = (*model)->start({});
        ASSERT_TRUE(session.ok());
        const auto answer = (*session)->generate(request(sampled, tokens), {});
        ASSERT_TRUE(answer.ok()) << answer.error().message;
        const std::string got = answer->logits_hash + " " + answer->text;
        if (expected.empty()) expected = got;
        EXPECT_EQ(got, expected) << readers << " readers, round " << round;
      }
      while (readers > 0 && seen.lines == 0) std::this_thread::sleep_for(milliseconds(1));
      done = true;
      for (std::thread& thread : threads) thread.join();
      if (readers > 0) {
        EXPECT_GT(seen.lines.load(), 0);
        std::printf("%d readers: %lld lines, %lld gaps\n", readers,
                    static_cast<long long>(seen.lines), static_cast<long long>(seen.gaps));
      }
    }
  }
}

TEST(LiveStream, ReadersChangeNoAnswer) { expect_one_answer(kTiny, 40); }

TEST(LiveStream, ReadersChangeNoAnswerOfTheRealModel) {
  if (!ModelStore().resolve("smollm2-135m").ok()) GTEST_SKIP() << "smollm2-135m is not installed";
  expect_one_answer("smollm2-135m", 24);
}

// A reader of one run sees its beginning, its tokens and its end, in order, while it is made.
TEST(LiveStream, ARunIsSeenFromItsBeginningToItsEnd) {
  const auto engine = Engine::create({});
  ASSERT_TRUE(engine.ok());
  const auto model = (*engine)->load(kTiny, {});
  ASSERT_TRUE(model.ok());
  const auto stream = (*engine)->watch({"", TraceLevel::kPhases});
  const auto session = (*model)->start({});
  const auto answer = (*session)->generate(request(false, 8), {});
  ASSERT_TRUE(answer.ok());
  ASSERT_TRUE((*engine)->flush_trace().ok());
  std::vector<std::string> names;
  int64_t tokens = 0;
  for (const auto& line : stream->next(1000, milliseconds(1000)).lines) {
    const Json record = parse_json(*line).value();
    if (record.value("run", "") != answer->run) continue;
    const auto name = record.at("name").get<std::string>();
    names.push_back(record.at("kind").get<std::string>() + " " + name);
    tokens += names.back() == "exit inference::Decoder::token";
  }
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.front(), "enter api::Session::generate");
  EXPECT_EQ(names.back(), "exit api::Session::generate");
  EXPECT_EQ(tokens, static_cast<int64_t>(answer->tokens.size()));
}

}  // namespace
}  // namespace cutaway
