// Time of one choice, by vocabulary, parameters and shape of the logits. Prints one JSON document.
// Usage: sampling_bench [repetitions]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "sampling/sampler.h"

namespace {

using cutaway::Json;
using cutaway::sampling::Ledger;
using cutaway::sampling::Sampler;
using cutaway::sampling::SamplingParams;

struct Case {
  const char* name;
  SamplingParams params;
  bool ledger;
};

SamplingParams with(float temperature, int32_t top_k, float top_p, float min_p, float typical_p) {
  SamplingParams p;
  p.temperature = temperature;
  p.top_k = top_k;
  p.top_p = top_p;
  p.min_p = min_p;
  p.typical_p = typical_p;
  p.seed = 1;
  return p;
}

std::vector<Case> cases() {
  return {{"greedy", with(0, 0, 1, 0, 1), false},
          {"greedy, ledger", with(0, 0, 1, 0, 1), true},
          {"temperature", with(1, 0, 1, 0, 1), false},
          {"top_k 40", with(0.8f, 40, 1, 0, 1), false},
          {"top_k 40, top_p 0.95, min_p 0.05", with(0.8f, 40, 0.95f, 0.05f, 1), false},
          {"top_p 0.95", with(1, 0, 0.95f, 0, 1), false},
          {"min_p 0.05", with(1, 0, 1, 0.05f, 1), false},
          {"typical_p 0.9", with(1, 0, 1, 0, 0.9f), false},
          {"top_k 40, top_p 0.95, ledger", with(0.8f, 40, 0.95f, 0, 1), true}};
}

// "peaked": normal logits as a language model's head gives; "flat": hardly any difference, the
// worst case for a partial order.
std::vector<float> make_logits(size_t n, bool peaked) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, peaked ? 3.0f : 0.01f);
  std::vector<float> logits(n);
  for (float& l : logits) l = normal(rng);
  if (peaked) {
    for (int i = 0; i < 20; ++i) logits[rng() % n] += 12.0f - static_cast<float>(i) * 0.5f;
  }
  return logits;
}

Json measure(const Case& what, const std::vector<float>& logits, int repetitions) {
  Sampler sampler(what.params, static_cast<int32_t>(logits.size()));
  std::vector<double> us;
  int64_t checksum = 0;
  for (int i = 0; i < repetitions; ++i) {
    Ledger ledger;
    const int64_t begin = cutaway::now_ns();
    const auto id = sampler.choose(logits, i, i, what.ledger ? &ledger : nullptr);
    us.push_back(static_cast<double>(cutaway::now_ns() - begin) / 1000);
    checksum += id.ok() ? *id : -1;
  }
  std::sort(us.begin(), us.end());
  return {{"case", what.name},
          {"vocab", logits.size()},
          {"us", {{"median", us[us.size() / 2]}, {"min", us.front()}, {"max", us.back()}}},
          {"checksum", checksum}};
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 200;
  Json runs = Json::array();
  for (const bool peaked : {true, false}) {
    for (const size_t n : {49152u, 151936u}) {
      const std::vector<float> logits = make_logits(n, peaked);
      for (const Case& what : cases()) {
        Json run = measure(what, logits, repetitions);
        run["logits"] = peaked ? "peaked" : "flat";
        runs.push_back(std::move(run));
      }
    }
  }
  std::printf("%s\n", cutaway::to_text({{"repetitions", repetitions}, {"runs", runs}}, 2).c_str());
  return 0;
}
