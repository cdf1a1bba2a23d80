// What a generation gave: the records behind `run --json`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace cutaway {

struct TokenAlternative {
  int32_t id = 0;
  std::string piece;   // for people: UTF-8, invalid bytes as U+FFFD
  double logprob = 0;  // natural log, of the model's own distribution
};

struct GeneratedToken {
  int32_t id = 0;
  std::string piece;
  std::string bytes;  // as the vocabulary has them; may be half a character
  double logprob = 0;
  std::vector<TokenAlternative> top;
  Json ledger = nullptr;
};

struct Usage {
  int64_t input_tokens = 0, output_tokens = 0, reasoning_tokens = 0, cached_tokens = 0;
};

struct Timings {
  double load_ms = 0;  // of the model; the same for every generation of a process
  double ttft_ms = 0;  // from the call to the first token
  double prefill_tps = 0, decode_tps = 0, total_ms = 0;
  double peak_rss_mb = 0;  // of the process so far
};

struct Generation {
  std::string run;            // ULID
  std::string model;          // its name
  std::string text;           // valid UTF-8 unless the model wrote other bytes; see `piece`
  std::string finish_reason;  // "stop" | "length" | "cancelled"
  std::string stop;           // the stop string or end token's spelling that ended it, if any
  std::vector<GeneratedToken> tokens;
  std::vector<int32_t> prompt_tokens;
  Usage usage;
  Timings timings;
  uint64_t seed = 0;
  Json sampling, session;   // what took effect; session: context, cache type, threads, kernels, …
  std::string logits_hash;  // XXH3-128, see docs/architecture.md
  // With interventions: {"taps":[{"item","tap","op","fired"}],"force":[…],"ban":[…]}, how often
  // each took effect.
  Json interventions = nullptr;
  // Settings without effect; in a session's first answer also what its threads and its context
  // mean on this machine.
  std::vector<std::string> warnings;
};

// `run --json`.
Json to_json(const Generation& generation);

// Called as text becomes final: `text` holds whole characters and may be empty (a token that ends
// inside one), `token` is what was just chosen. Return false to end the generation ("cancelled").
struct StreamEvent {
  std::string_view text;
  const GeneratedToken* token = nullptr;  // null for text released at the end
};
using StreamFn = std::function<bool(const StreamEvent&)>;

}  // namespace cutaway
