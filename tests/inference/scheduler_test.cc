// Many answers at once have the bits that each has alone: at every size of a tick, with pages for a
// few of them, whoever comes, goes and begins like others.
#include "inference/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "inference/decoder.h"
#include "tests/support/tiny_model.h"

namespace cutaway::inference {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<int32_t>;

struct Ended {
  int times = 0;
  Result<Outcome> outcome = Error{};
  Tokens ids;  // as they were called back
};

class Scheduled : public ::testing::TestWithParam<const arch::Architecture*> {
 protected:
  void SetUp() override {
    std::string error;
    model_ = testing::tiny_model(*GetParam(), GetParam()->tiny_configs().front(), DType::kQ8_0,
                                 pool_, true, &error);
    ASSERT_NE(model_, nullptr) << error;
    const arch::ModelShape& m = model_->shape();
    geometry_ = {m.n_layers, m.n_kv_heads, m.d_head, m.d_head, kernels::KvType::kF16};
    context_ = std::min<int64_t>(m.context_length, 256);
  }

  Tokens random_tokens(std::mt19937& random, size_t n) const {
    Tokens out(n);
    for (int32_t& token : out) token = static_cast<int32_t>(random() % 250);
    return out;
  }
  Request request(Tokens prompt, int64_t max_tokens, double temperature, uint64_t seed) const {
    Request out;
    out.prompt = std::move(prompt);
    out.options.context = context_;
    out.options.max_tokens = max_tokens;
    out.options.sampling.temperature = temperature;
    out.options.sampling.seed = seed;
    return out;
  }
  // Alone, with everything off.
  Outcome alone(const Request& request) {
    kv::PagePool pages(geometry_, 8);
    Runner runner(*model_, *table_, pool_, false);
    runner.set_context(context_);
    SequenceState sequence(pages);
    DecodeOptions options = request.options;
    options.draft_tokens = 0;
    auto out = Decoder(runner, model_->tokenizer()).generate(sequence, request.prompt, options, {});
    EXPECT_TRUE(out.ok()) << out.error().message;
    return *out;
  }
  // What the answer has so far is what it has alone; all of it, unless it was cancelled.
  static void expect_same(const Ended& ended, const Outcome& alone, const std::string& where) {
    ASSERT_EQ(ended.times, 1) << where;
    ASSERT_TRUE(ended.outcome.ok()) << where << ": " << ended.outcome.error().message;
    ASSERT_EQ(ended.ids, ended.outcome->ids) << where;
    if (ended.outcome->finish == FinishReason::kCancelled) {
      ASSERT_LE(ended.ids.size(), alone.ids.size()) << where;
      ASSERT_TRUE(std::equal(ended.ids.begin(), ended.ids.end(), alone.ids.begin())) << where;
      return;
    }
    ASSERT_EQ(ended.outcome->ids, alone.ids) << where;
    ASSERT_EQ(ended.outcome->logits_hash.hex(), alone.logits_hash.hex()) << where;
    ASSERT_EQ(ended.outcome->finish, alone.finish) << where;
    ASSERT_EQ(ended.outcome->tail, alone.tail) << where;
  }
  static Request called_back(Request request, Ended& to) {
    request.on_choice = [&to](const Choice& choice) {
      to.ids.push_back(choice.id);
      return true;
    };
    request.on_end = [&to](Result<Outcome> outcome) {
      ++to.times;
      to.outcome = std::move(outcome);
    };
    return request;
  }

  ThreadPool pool_{2};
  const kernels::KernelTable* table_ = kernels::select_table("")->table;
  std::shared_ptr<const model::LoadedModel> model_;
  kv::Geometry geometry_;
  int64_t context_ = 0;
};

TEST_P(Scheduled, RandomRequestsHaveTheBitsThatEachHasAlone) {
  std::mt19937 random(17);
  int64_t preempted = 0, cached = 0, evicted = 0, most_together = 0, drafted = 0, accepted = 0;
  for (const auto& [tick_tokens, n_pages, reuse] :
       {std::tuple<int64_t, int64_t, bool>{512, 64, true},
        {16, 7, true},
        {64, 5, false},
        {1, 6, true}}) {
    kv::PagePool pages(geometry_, n_pages);
    Runner runner(*model_, *table_, pool_, false);
    runner.set_context(context_);
    std::vector<Request> requests;
    std::vector<Ended> ended(40);
    {
      Scheduler scheduler(runner, pages, model_->tokenizer(),
                          {.max_running = 6, .tick_tokens = tick_tokens, .prefix_reuse = reuse});
      const Tokens common = random_tokens(random, 90);
      for (size_t i = 0; i < ended.size(); ++i) {
        Tokens prompt =
            random() % 2 == 0 ? Tokens(common.begin(), common.begin() + random() % 90) : Tokens();
        const Tokens own = random_tokens(random, 1 + random() % 60);
        prompt.insert(prompt.end(), own.begin(), own.end());
        requests.push_back(request(prompt, static_cast<int64_t>(random() % 50),
                                   random() % 2 == 0 ? 0.0 : 1.2, random()));
        requests.back().options.draft_tokens = random() % 2 == 0 ? 0 : 1 + random() % 8;
      }
      std::map<int64_t, size_t> numbers;
      for (size_t next = 0, idle = 0; idle < 3;) {
        while (next < requests.size() && random() % 3 == 0) {
          auto number = scheduler.add(called_back(requests[next], ended[next]));
          ASSERT_TRUE(number.ok()) << number.error().message;
          numbers[*number] = next++;
        }
        if (random() % 30 == 0 && next > 0) {
          scheduler.cancel(static_cast<int64_t>(random() % next));
        }
        const auto tick = scheduler.tick();
        idle = tick || next < requests.size() ? 0 : idle + 1;
        if (!tick) continue;
        preempted += tick->preempted;
        evicted += tick->evicted_pages;
        most_together = std::max(most_together, tick->sequences);
        EXPECT_LE(tick->pages_in_use, n_pages);
        EXPECT_LE(tick->prompt_tokens + tick->answer_tokens,
                  std::max(tick_tokens, tick->sequences));
      }
      EXPECT_EQ(scheduler.running() + scheduler.waiting(), 0);
      EXPECT_EQ(pages.pages_in_use(), scheduler.tree().page_count()) << "what the tree holds alone";
    }
    EXPECT_EQ(pages.pages_in_use(), 0);
    for (size_t i = 0; i < ended.size(); ++i) {
      const std::string where =
          "request " + std::to_string(i) + ", ticks of " + std::to_string(tick_tokens) + " tokens";
      ASSERT_NO_FATAL_FAILURE(expect_same(ended[i], alone(requests[i]), where));
      cached += ended[i].outcome->cached_tokens;
      drafted += ended[i].outcome->drafted;
      accepted += ended[i].outcome->accepted;
      if (requests[i].options.draft_tokens == 0) {
        EXPECT_EQ(ended[i].outcome->drafted, 0);
      }
      if (!reuse) {
        EXPECT_EQ(ended[i].outcome->cached_tokens, 0);
      }
    }
  }
  EXPECT_GT(preempted, 0);
  EXPECT_GT(evicted, 0);
  EXPECT_GT(cached, 0);
  EXPECT_GE(most_together, 4);
  EXPECT_GT(accepted, 0);
  EXPECT_GT(drafted, accepted);
  std::printf(
      "%s: %ld preemptions, %ld pages evicted, %ld prompt tokens that were there, %ld of %ld "
      "guesses "
      "right\n",
      GetParam()->name, preempted, evicted, cached, accepted, drafted);
}

TEST_P(Scheduled, AShortRequestDoesNotWaitForALongPrompt) {
  kv::PagePool pages(geometry_, 64);
  Runner runner(*model_, *table_, pool_, false);
  runner.set_context(context_);
  Scheduler scheduler(runner, pages, model_->tokenizer(), {.tick_tokens = 32});
  std::mt19937 random(3);
  Ended first, second;
  ASSERT_TRUE(scheduler.add(called_back(request(random_tokens(random, 110), 2, 0, 1), first)).ok());
  ASSERT_EQ(scheduler.tick()->prompt_tokens, 32);
  ASSERT_TRUE(
      scheduler.add(called_back(request(random_tokens(random, 10), 20, 0, 1), second)).ok());
  scheduler.tick();
  EXPECT_EQ(second.ids.size(), 1u);
  EXPECT_TRUE(first.ids.empty());
  while (scheduler.tick()) {
  }
  EXPECT_EQ(second.ids.size(), second.outcome->ids.size());
}

TEST_P(Scheduled, WhatCannotBeDoneIsSaidAtOnce) {
  kv::PagePool pages(geometry_, 1);
  Runner runner(*model_, *table_, pool_, false);
  runner.set_context(context_);
  Scheduler scheduler(runner, pages, model_->tokenizer(), {.max_waiting = 2});
  std::mt19937 random(4);
  const auto error_of = [&](Request request) {
    auto number = scheduler.add(std::move(request));
    EXPECT_FALSE(number.ok());
    return number.ok() ? Error{} : number.error();
  };
  const Error long_answer = error_of(request(random_tokens(random, 60), 20, 0, 1));
  EXPECT_EQ(long_answer.field, "max_tokens");
  EXPECT_THAT(long_answer.message, HasSubstr("there is room for 64, for an answer of at most 5"));
  const Error long_prompt = error_of(request(random_tokens(random, 70), 1, 0, 1));
  EXPECT_EQ(long_prompt.field, "prompt");
  EXPECT_EQ(error_of(request({}, 1, 0, 1)).field, "prompt");
  const Error outside = error_of(request({3, 1 << 20}, 1, 0, 1));
  EXPECT_THAT(outside.message, HasSubstr("1048576 is outside the vocabulary"));
  Ended fits, other;
  ASSERT_TRUE(scheduler.add(called_back(request(random_tokens(random, 60), 5, 0, 1), fits)).ok());
  ASSERT_TRUE(scheduler.add(called_back(request(random_tokens(random, 50), 3, 0, 1), other)).ok());
  EXPECT_THAT(error_of(request({1}, 1, 0, 1)).message, HasSubstr("queue is full"));
  while (scheduler.tick()) {
  }
  EXPECT_EQ(fits.outcome->ids.size(), 5u);
  EXPECT_EQ(other.outcome->ids.size(), 3u);
}

TEST_P(Scheduled, WhoListensMayEndAndAddAndCancel) {
  kv::PagePool pages(geometry_, 16);
  Runner runner(*model_, *table_, pool_, false);
  runner.set_context(context_);
  Scheduler scheduler(runner, pages, model_->tokenizer(), {});
  Ended ended, child;
  Request parent = called_back(request({1, 2, 3}, 40, 0, 1), ended);
  parent.on_choice = [&](const Choice& choice) {
    ended.ids.push_back(choice.id);
    return ended.ids.size() < 3;
  };
  parent.on_end = [&](Result<Outcome> outcome) {
    ++ended.times;
    ended.outcome = std::move(outcome);
    EXPECT_TRUE(scheduler.add(called_back(request({4, 5}, 4, 0, 1), child)).ok());
    scheduler.cancel(0);
  };
  ASSERT_TRUE(scheduler.add(std::move(parent)).ok());
  while (scheduler.tick()) {
  }
  EXPECT_EQ(ended.outcome->finish, FinishReason::kCancelled);
  EXPECT_EQ(ended.ids.size(), 3u);
  EXPECT_EQ(child.outcome->ids.size(), 4u);
  EXPECT_EQ(ended.times + child.times, 2);
}

std::vector<const arch::Architecture*> every() {
  std::vector<const arch::Architecture*> out;
  for (const arch::Architecture& architecture : arch::architectures()) out.push_back(&architecture);
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, Scheduled, ::testing::ValuesIn(every()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace cutaway::inference
