// Sampling against a second implementation, by hand, and against itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/json.h"
#include "sampling/sampler.h"
#include "tests/unit/sampling_oracle.h"

namespace cutaway::sampling {
namespace {

using ::testing::ElementsAre;

// ---- The whole chain --------------------------------------------------------------------------

TEST(Sampler, EqualsTheOracle) {
  std::mt19937 rng(4);
  int compared = 0, sizes_seen = 0;
  for (int round = 0; round < 6000; ++round) {
    const size_t n = round % 50 == 0 ? 20000 + rng() % 20000 : 1 + rng() % 700;
    sizes_seen += n > 20000;
    const std::vector<float> logits = random_logits(rng, n);
    const SamplingParams params = random_params(rng, n);
    std::vector<int32_t> prompt, output;
    for (size_t i = rng() % 10; i > 0; --i) prompt.push_back(static_cast<int32_t>(rng() % n));
    for (size_t i = rng() % 10; i > 0; --i) output.push_back(static_cast<int32_t>(rng() % n));
    const auto position = static_cast<int64_t>(rng());

    Sampler sampler(params, static_cast<int32_t>(n));
    sampler.accept_prompt(prompt);
    for (const int32_t id : output) sampler.accept(id);
    Ledger ledger;
    const auto with = sampler.choose(logits, position, 0, &ledger, 1 << 20);
    const auto without = sampler.choose(logits, position, 0);
    ASSERT_TRUE(with.ok()) << with.error().message;
    ASSERT_TRUE(without.ok());
    ASSERT_EQ(*with, *without) << "the ledger changed the choice, round " << round;

    const OracleChoice oracle = Oracle(logits, params, prompt, output).choose(ledger.draw_u);
    if (oracle.narrowest < 1e-12L) continue;
    ++compared;
    ASSERT_EQ(*with, oracle.chosen) << "round " << round;
    ASSERT_NEAR(ledger.interval_begin, static_cast<double>(oracle.begin), 1e-12);
    ASSERT_NEAR(ledger.interval_end, static_cast<double>(oracle.end), 1e-12);
    ASSERT_EQ(ledger.candidates.size(), oracle.survivors.size()) << "round " << round;
    for (size_t i = 0; i < oracle.survivors.size(); ++i) {
      ASSERT_EQ(ledger.candidates[i].id, oracle.survivors[i].id);
      ASSERT_NEAR(ledger.candidates[i].prob, static_cast<double>(oracle.survivors[i].p), 1e-12);
    }
    std::vector<StageRecord> cuts;
    for (const StageRecord& stage : ledger.stages) {
      const std::set<std::string> kinds = {"top_k", "typical_p", "top_p", "min_p"};
      if (kinds.contains(stage.name)) cuts.push_back(stage);
    }
    ASSERT_EQ(cuts.size(), oracle.stages.size());
    for (size_t i = 0; i < cuts.size(); ++i) {
      ASSERT_EQ(cuts[i].name, oracle.stages[i].name);
      ASSERT_EQ(cuts[i].before_count, static_cast<int64_t>(oracle.stages[i].before));
      ASSERT_EQ(cuts[i].after_count, static_cast<int64_t>(oracle.stages[i].after));
      ASSERT_EQ(cuts[i].before_mass, 1);
      ASSERT_NEAR(cuts[i].after_mass, static_cast<double>(oracle.stages[i].mass), 1e-12);
      ASSERT_EQ(cuts[i].removed.size(), oracle.stages[i].removed.size());
      for (size_t r = 0; r < cuts[i].removed.size(); ++r) {
        ASSERT_EQ(cuts[i].removed[r].id, oracle.stages[i].removed[r]);
      }
    }
  }
  EXPECT_GT(compared, 5000);
  EXPECT_GT(sizes_seen, 100);
}

TEST(Sampler, RawPartOfTheLedgerIsTheModelsOwn) {
  std::mt19937 rng(5);
  for (int round = 0; round < 300; ++round) {
    const std::vector<float> logits = random_logits(rng, 2 + rng() % 3000);
    SamplingParams params = random_params(rng, logits.size());
    if (round % 3 == 0) params.temperature = 0;
    Ledger ledger;
    const auto id = choose(logits, params, &ledger);
    ASSERT_TRUE(id.ok());
    const auto top = top_logprobs(logits, 20);
    ASSERT_EQ(ledger.raw_top.size(), top.size());
    for (size_t i = 0; i < top.size(); ++i) {
      ASSERT_EQ(ledger.raw_top[i].id, top[i].id);
      ASSERT_EQ(ledger.raw_top[i].logprob, top[i].logprob);
    }
    long double entropy = 0;
    const double lse = static_cast<double>(top[0].logit) - top[0].logprob;
    int rank = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] == -kInf) continue;
      const long double lp = static_cast<long double>(logits[i]) - lse;
      entropy -= std::exp(lp) * lp;
      const float c = logits[static_cast<size_t>(*id)];
      rank += logits[i] > c || (logits[i] == c && static_cast<int32_t>(i) < *id);
    }
    ASSERT_NEAR(ledger.raw_entropy, static_cast<double>(entropy), 1e-11);
    ASSERT_EQ(ledger.chosen_rank, rank);
    ASSERT_NEAR(ledger.chosen_raw_prob,
                std::exp(static_cast<double>(logits[static_cast<size_t>(*id)]) - lse), 1e-12);
  }
}

// What a reader of the JSON alone can do: weigh the listed logits, cut as the stages say, and find
// where u falls.
TEST(Ledger, ChoiceCanBeCheckedByHandFromTheJson) {
  std::mt19937 rng(6);
  for (int round = 0; round < 500; ++round) {
    const std::vector<float> logits = random_logits(rng, 100 + rng() % 2000);
    SamplingParams params;
    params.temperature = round % 2 == 0 ? 0.8f : 1.3f;
    params.top_k = 20;  // so that everything that was left at the draw is in raw.top
    params.top_p = round % 3 == 0 ? 1 : 0.9f;
    params.min_p = round % 5 == 0 ? 0.05f : 0;
    params.seed = static_cast<uint64_t>(round);
    Ledger ledger;
    ASSERT_TRUE(choose(logits, params, &ledger, round).ok());
    const auto json = parse_json(to_text(to_json(ledger)));
    ASSERT_TRUE(json.ok());
    double temperature = 1;
    size_t left = (*json)["raw"]["top"].size();
    for (const auto& stage : (*json)["stages"]) {
      if (stage["name"] == "temperature") temperature = stage["params"]["temperature"];
      left = std::min(left, stage["after"]["count"].get<size_t>());
    }
    double total = 0;
    std::vector<double> weights;
    for (size_t i = 0; i < left; ++i) {
      weights.push_back(std::exp((*json)["raw"]["top"][i]["logit"].get<double>() / temperature));
      total += weights.back();
    }
    const double u = (*json)["draw"]["u"];
    double begin = 0;
    size_t at = 0;
    while (at + 1 < left && (begin + weights[at]) / total <= u) begin += weights[at++];
    EXPECT_EQ((*json)["raw"]["top"][at]["id"], (*json)["chosen"]["id"]);
    EXPECT_NEAR((*json)["draw"]["interval"][0], begin / total, 1e-12);
    EXPECT_NEAR((*json)["draw"]["interval"][1], (begin + weights[at]) / total, 1e-12);
    EXPECT_NEAR((*json)["chosen"]["prob"], weights[at] / total, 1e-12);
    EXPECT_EQ((*json)["chosen"]["rank"], at);
    EXPECT_LE((*json)["draw"]["interval"][0], u);
    EXPECT_GT((*json)["draw"]["interval"][1], u);
  }
}

TEST(Ledger, JsonOfAGreedyChoice) {
  SamplingParams params;
  params.logit_bias[1] = 3;
  params.repeat_penalty = 2;
  params.presence_penalty = 0.5f;
  Sampler sampler(params, 3);
  const std::vector<int32_t> prompt = {0};
  sampler.accept_prompt(prompt);
  sampler.accept(2);
  Ledger ledger;
  ASSERT_EQ(*sampler.choose(std::vector<float>{2, 0, 1, 100}, 7, 3, &ledger), 1);
  const Json json = to_json(ledger);
  std::vector<std::string> keys, names;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  for (const auto& stage : json["stages"]) names.push_back(stage["name"]);
  EXPECT_THAT(keys, ElementsAre("position", "step", "raw", "stages", "draw", "chosen"));
  EXPECT_THAT(names, ElementsAre("logit_bias", "repetition", "presence_frequency", "temperature"));
  EXPECT_EQ(json["stages"][0]["params"], Json::parse(R"({"logit_bias":{"1":3.0}})"));
  EXPECT_EQ(json["stages"][3]["before"]["count"], 3);
  EXPECT_EQ(json["stages"][3]["after"]["count"], 1);
  EXPECT_EQ(json["stages"][3]["removed"][0]["id"], 0);  // 2 / 2 = 1, above 1 / 2 − 0.5 = 0
  EXPECT_EQ(json["stages"][3]["removed"][1]["id"], 2);
  EXPECT_EQ(json["draw"], Json::parse(R"({"u":null,"interval":[0.0,1.0]})"));
  EXPECT_EQ(json["chosen"]["id"], 1);
  EXPECT_EQ(json["chosen"]["rank"], 2);
  EXPECT_EQ(json["chosen"]["prob"], 1.0);
  EXPECT_EQ(json["position"], 7);
  EXPECT_EQ(json["step"], 3);
}

// ---- Determinism and distribution -------------------------------------------------------------

TEST(Sampler, DrawDependsOnSeedPositionAndChoiceOnly) {
  std::mt19937 rng(7);
  const std::vector<float> logits = random_logits(rng, 5000);
  SamplingParams p;
  p.temperature = 1.2f;
  p.top_p = 0.95f;
  p.seed = 31337;
  std::vector<int32_t> forwards, backwards(100);
  Sampler a(p, 5000), b(p, 5000), other_choice(p, 5000, 1);
  for (int64_t i = 0; i < 100; ++i) forwards.push_back(*a.choose(logits, i, i));
  for (int64_t i = 99; i >= 0; --i) {
    Ledger ledger;
    backwards[static_cast<size_t>(i)] = *b.choose(logits, i, 0, i % 2 == 0 ? &ledger : nullptr);
  }
  EXPECT_EQ(forwards, backwards);
  std::vector<int32_t> others;
  for (int64_t i = 0; i < 100; ++i) others.push_back(*other_choice.choose(logits, i, i));
  EXPECT_NE(forwards, others);
}

TEST(Sampler, DrawsFollowTheDistribution) {
  std::vector<float> logits(40);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i)) * 1.5f;
  SamplingParams p;
  p.temperature = 0.9f;
  p.top_k = 25;
  p.seed = 5;
  Sampler sampler(p, 40);
  Ledger ledger;
  ASSERT_TRUE(sampler.choose(logits, 0, 0, &ledger, 100).ok());
  ASSERT_EQ(ledger.candidates.size(), 25u);
  constexpr int kDraws = 50000;
  std::map<int32_t, int> seen;
  for (int64_t i = 0; i < kDraws; ++i) ++seen[*sampler.choose(logits, i, 0)];
  double chi2 = 0;
  for (const Candidate& c : ledger.candidates) {
    const double expected = c.prob * kDraws;
    chi2 += (seen[c.id] - expected) * (seen[c.id] - expected) / expected;
    seen.erase(c.id);
  }
  EXPECT_TRUE(seen.empty()) << "a token that was cut was drawn";
  EXPECT_LT(chi2, 51.2);  // 24 degrees of freedom, p = 0.001
}

}  // namespace
}  // namespace cutaway::sampling
