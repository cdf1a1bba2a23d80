// Time of one choice, by vocabulary, parameters and shape of the logits.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "sampling/sampler.h"

namespace {

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
    for (int i = 0; i < 20; ++i) logits[rng() % n] += 22.0f - static_cast<float>(i) * 0.5f;
  }
  return logits;
}

void choose(benchmark::State& state, const Case& what, const std::vector<float>& logits) {
  Sampler sampler(what.params, static_cast<int32_t>(logits.size()));
  int64_t position = 0;  // another number is drawn each time
  for (auto _ : state) {
    Ledger ledger;
    const auto id = sampler.choose(logits, position, position, what.ledger ? &ledger : nullptr);
    if (!id.ok()) state.SkipWithError(id.error().message.c_str());
    benchmark::DoNotOptimize(id);
    ++position;
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  for (const bool peaked : {true, false}) {
    for (const size_t n : {49152u, 151936u}) {
      for (const Case& what : cases()) {
        const std::string name =
            std::string(peaked ? "peaked" : "flat") + "/" + std::to_string(n) + "/" + what.name;
        benchmark::RegisterBenchmark(name.c_str(), choose, what, make_logits(n, peaked))
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
