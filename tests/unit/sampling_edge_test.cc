// Edge cases and parameters of sampling.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "sampling/sampler.h"
#include "tests/unit/sampling_oracle.h"

namespace cutaway::sampling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- Edges ------------------------------------------------------------------------------------

TEST(Sampler, EdgeCasesOfEachParameter) {
  const std::vector<float> logits = {1, 3, 3, 2, -1};
  for (int64_t position = 0; position < 200; ++position) {
    SamplingParams p;
    p.temperature = 2;
    p.top_p = 0;
    EXPECT_EQ(chosen(logits, p, position), 1) << "top_p 0 keeps the most probable, lowest id";
    p = {};
    p.temperature = 2;
    p.top_k = 1;
    EXPECT_EQ(chosen(logits, p, position), 1);
    p = {};
    p.temperature = 2;
    p.min_p = 1;
    EXPECT_THAT(chosen(logits, p, position), ::testing::AnyOf(1, 2));
    p = {};
    p.temperature = 100;
    p.logit_bias[4] = 100;
    p.top_p = 0.45f;
    EXPECT_EQ(chosen({0, 0, 0, -kInf, 0}, p, position), 4)
        << "+100 at temperature 100 is a factor of e: 0.475 of the mass";
  }
}

TEST(Sampler, MinusHundredBansInPracticeOnly) {
  SamplingParams p;
  p.temperature = 1;
  p.logit_bias[0] = -100;
  for (int64_t position = 0; position < 1000; ++position) {
    EXPECT_EQ(chosen({10, 0}, p, position), 1);
  }
  EXPECT_EQ(chosen({200, 0}, p), 0) << "it is an addition, as documented";
}

TEST(Sampler, AllButOneMasked) {
  std::vector<float> logits(1000, -kInf);
  logits[777] = -5;
  for (const float temperature : {0.0f, 0.5f, 100.0f}) {
    SamplingParams p;
    p.temperature = temperature;
    p.top_k = 40;
    p.top_p = 0.9f;
    p.min_p = 0.1f;
    p.typical_p = 0.5f;
    Ledger ledger;
    ASSERT_EQ(*choose(logits, p, &ledger), 777);
    EXPECT_EQ(ledger.chosen_prob, 1);
    EXPECT_EQ(ledger.chosen_rank, 0);
    EXPECT_EQ(ledger.raw_entropy, 0);
  }
}

TEST(Sampler, TiesGoToTheLowestId) {
  const std::vector<float> logits(500, 2.0f);
  SamplingParams p;
  EXPECT_EQ(chosen(logits, p), 0);
  p.temperature = 1;
  p.top_k = 3;
  std::set<int32_t> seen;
  for (int64_t position = 0; position < 300; ++position) seen.insert(chosen(logits, p, position));
  EXPECT_THAT(seen, ElementsAre(0, 1, 2));
}

TEST(Sampler, ZerosOfEitherSignAreEqual) {
  SamplingParams p;
  EXPECT_EQ(chosen({-1, -0.0f, 0.0f}, p), 1);
  p.temperature = 1;
  p.top_k = 1;
  EXPECT_EQ(chosen({-1, -0.0f, 0.0f}, p), 1);
  std::vector<float> many(3000, 0.0f);  // enough for the radix sort
  for (size_t i = 0; i < many.size(); i += 3) many[i] = -0.0f;
  EXPECT_EQ(chosen(many, p), 0);
  const auto top = top_logprobs(many, 2000);
  for (size_t i = 0; i < top.size(); ++i) EXPECT_EQ(top[i].id, static_cast<int32_t>(i));
}

TEST(Sampler, IdsPastTheTokenizerAreNeverChosen) {
  std::vector<float> logits(100, 0.0f);
  for (size_t i = 90; i < 100; ++i) logits[i] = 50;
  logits[95] = kNan;  // padding rows of the head may hold anything
  SamplingParams p;
  p.seed = 9;
  for (const float temperature : {0.0f, 1.0f}) {
    p.temperature = temperature;
    Sampler sampler(p, 90);
    for (int64_t position = 0; position < 200; ++position) {
      Ledger ledger;
      const auto id = sampler.choose(logits, position, 0, &ledger);
      ASSERT_TRUE(id.ok());
      ASSERT_LT(*id, 90);
      ASSERT_LT(ledger.raw_top[0].id, 90);
    }
  }
}

TEST(Sampler, RefusesDamagedLogits) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingParams p;
    p.temperature = temperature;
    Ledger ledger;
    const auto nan = choose({1, 2, kNan, 4}, p, nullptr, 17);
    ASSERT_FALSE(nan.ok());
    EXPECT_EQ(nan.error().code, ErrorCode::kInvalidFile);
    EXPECT_THAT(nan.error().message, HasSubstr("token 2 at position 17 is NaN"));
    EXPECT_FALSE(choose({1, 2, kNan, 4}, p, &ledger).ok());
    EXPECT_THAT(choose({1, kInf}, p).error().message, HasSubstr("token 1 at position 0 is +inf"));
    EXPECT_THAT(choose({-kInf, -kInf}, p).error().message, HasSubstr("all 2 logits are -inf"));
  }
}

TEST(Sampler, ExtremeTemperatures) {
  SamplingParams p;
  p.temperature = 1e-38f;
  EXPECT_EQ(chosen({1, 1.0000001f, 1}, p), 1);
  for (const double least : {static_cast<double>(std::numeric_limits<float>::denorm_min()), 1e-200,
                             std::numeric_limits<double>::denorm_min()}) {
    p.temperature = least;
    EXPECT_EQ(chosen({3e38f, -3e38f, 0}, p), 0) << least;
    EXPECT_EQ(chosen({1, 1.0000001f, 1}, p), 1) << least;
  }
  p.temperature = 100;
  p.typical_p = 0.5f;
  EXPECT_TRUE(choose({3e38f, -3e38f, 0}, p).ok());
}

TEST(Sampler, PenaltyArithmetic) {
  SamplingParams p;
  p.repeat_penalty = 2;
  p.presence_penalty = 0.25f;
  p.frequency_penalty = 0.5f;
  p.temperature = 1;
  Sampler sampler(p, 5);
  const std::vector<int32_t> prompt = {0, 0, 1};
  sampler.accept_prompt(prompt);
  for (const int32_t id : {2, 2, 1, 99, -1}) sampler.accept(id);  // ids outside change nothing
  Ledger ledger;
  ASSERT_TRUE(sampler.choose(std::vector<float>{4, -4, 3, 1, 0}, 0, 0, &ledger).ok());
  std::map<int32_t, float> logits;
  for (const Candidate& c : ledger.candidates) logits[c.id] = c.logit;
  EXPECT_EQ(logits[0], 2.0f);                       // 4 / 2, once, however often it occurs
  EXPECT_EQ(logits[1], -8.0f - 0.75f);              // −4 · 2, then one occurrence in the output
  EXPECT_EQ(logits[2], 1.5f - (2 * 0.5f + 0.25f));  // 3 / 2, then two occurrences
  EXPECT_EQ(logits[3], 1.0f);
  EXPECT_EQ(logits[4], 0.0f);
}

// ---- Parameters -------------------------------------------------------------------------------

TEST(SamplingParams, MessagesNameFieldValueAndRange) {
  const auto message = [](auto change) {
    SamplingParams p;
    change(p);
    const Status status = p.validate(100);
    return status.ok() ? std::string("accepted")
                       : status.error().field + "|" + status.error().message;
  };
  using P = SamplingParams;
  EXPECT_EQ(message([](P& p) { p.temperature = -1; }),
            "temperature|temperature is -1, must be between 0 and 100");
  EXPECT_EQ(message([](P& p) { p.temperature = kNan; }),
            "temperature|temperature is nan, must be between 0 and 100");
  EXPECT_EQ(message([](P& p) { p.top_k = -3; }), "top_k|top_k is -3, must be 0 (off) or greater");
  EXPECT_EQ(message([](P& p) { p.top_p = 1.5f; }), "top_p|top_p is 1.5, must be between 0 and 1");
  EXPECT_EQ(message([](P& p) { p.min_p = -0.1; }), "min_p|min_p is -0.1, must be between 0 and 1");
  EXPECT_EQ(message([](P& p) { p.typical_p = 0; }),
            "typical_p|typical_p is 0, must be greater than 0 and at most 1");
  EXPECT_EQ(message([](P& p) { p.repeat_penalty = 0; }),
            "repeat_penalty|repeat_penalty is 0, must be greater than 0 and at most 100");
  EXPECT_EQ(message([](P& p) { p.presence_penalty = 2.5f; }),
            "presence_penalty|presence_penalty is 2.5, must be between -2 and 2");
  EXPECT_EQ(message([](P& p) { p.frequency_penalty = -3; }),
            "frequency_penalty|frequency_penalty is -3, must be between -2 and 2");
  EXPECT_EQ(message([](P& p) { p.logit_bias[100] = 1; }),
            "logit_bias|logit_bias has the token id 100, must be between 0 and 99");
  EXPECT_EQ(message([](P& p) { p.logit_bias[5] = 101; }),
            "logit_bias|logit_bias of token 5 is 101, must be between -100 and 100");
  EXPECT_EQ(message([](P& p) { p.top_p = 0, p.min_p = 1, p.temperature = 100; }), "accepted");
}

TEST(SamplingParams, NamesWhatHasNoEffectAtTemperatureZero) {
  SamplingParams p;
  EXPECT_TRUE(p.without_effect().empty());
  p.top_k = 40;
  p.top_p = 0.9f;
  p.min_p = 0.1f;
  p.typical_p = 0.5f;
  p.repeat_penalty = 1.3f;
  EXPECT_THAT(p.without_effect(), ElementsAre("top_k", "typical_p", "top_p", "min_p"));
  p.temperature = 0.5f;
  EXPECT_TRUE(p.without_effect().empty());
}

}  // namespace
}  // namespace cutaway::sampling
