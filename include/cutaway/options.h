// What a caller may ask for. Everything that is not set takes the model file's recommendation, else
// the documented default; what took effect is echoed in the Generation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "cutaway/intervention.h"

namespace cutaway {

enum class TraceLevel : uint8_t { kOff, kPhases, kFunctions, kTensors };
// Accepts "off", "phases", "functions", "tensors".
Result<TraceLevel> parse_trace_level(const std::string& text);

// How keys and values are kept: as floats, or as 8 or 4 bits with f16 scales for each 32 elements
// of a position (docs/architecture.md: what each takes, and costs in quality).
enum class CacheType : uint8_t { kF32, kF16, kQ8, kQ4 };
// Accepts "f32", "f16", "q8", "q4".
Result<CacheType> parse_cache_type(const std::string& text);

struct EngineOptions {
  int threads = 0;        // 0: what the machine can really use; 1 … 1024
  std::string force_isa;  // "", "ref", "avx2", "avx512", "neon"
};

// Progress of a long operation. Return false to cancel it (it then ends with kCancelled).
struct Progress {
  std::string what;       // "download", "read", "repack", …
  uint64_t done = 0;      // bytes, or what `unit` says
  uint64_t total = 0;     // 0: not known
  std::string unit = {};  // "tokens", …; empty: bytes
};
using ProgressFn = std::function<bool(const Progress&)>;

struct SamplingOptions {
  std::optional<double> temperature, top_p, min_p, typical_p;
  std::optional<int64_t> top_k;
  std::optional<double> repeat_penalty, presence_penalty, frequency_penalty;
  std::map<int64_t, double> logit_bias;
  std::optional<uint64_t> seed;  // not given: drawn from the system, and echoed
};

// How a sequence is held and computed; fixed for a session.
struct SessionOptions {
  int64_t context = 0;                  // tokens; 0: what the model was trained for
  std::optional<CacheType> cache_type;  // f16; f32 under precise
  bool precise = false;                 // unquantised activations × dequantised weights
  int64_t prefill_chunk = 512;          // tokens per forward of a prompt, ≥ 1
};

// What of the named taps is kept (docs/capture.md); empty: everything.
struct TapWindow {
  std::string layers;     // "0,3-5": of the taps that patterns name
  std::string heads;      // "0,2": query heads; of keys and values the heads that these read
  std::string positions;  // "0:16", "-4:": the end excluded, negative ones from the end
  std::string steps;      // "0:4": of an answer; step s is the position that chose token s
};

// A recording of the run (recording.h). It appears when the generation has ended, also when that
// was cancelled.
struct RecordOptions {
  std::string directory;          // must not exist yet, or be empty
  std::vector<std::string> taps;  // names and patterns; to tensors.safetensors
  TapWindow window;
  // Keys of each attention row in the standing form, 1 to 16, likewise; 0: without it.
  int64_t attention_top = 0;
  // Of the run's own trace, to trace.jsonl: what ran when. kPhases is two lines a token, kFunctions
  // some hundreds.
  TraceLevel trace = TraceLevel::kPhases;
};

struct GenerateRequest {
  // Exactly one of these three:
  Json messages = nullptr;                     // a conversation, through the chat template
  std::optional<std::string> prompt;           // raw text
  std::optional<std::vector<int32_t>> tokens;  // ids, taken as they are

  bool parse_special = false;  // of a raw prompt: control tokens spelled in it are those tokens
  int64_t max_tokens = -1;     // −1: what is left of the context; ≥ 0
  SamplingOptions sampling;
  std::vector<std::string> stop;
  int32_t top_logprobs = 0;  // 0 … 20 alternatives per token, of the model's own distribution
  bool logprobs = true;      // fill GeneratedToken::logprob (a pass over the vocabulary per token)
  bool ledger = false;       // fill GeneratedToken::ledger
  std::optional<RecordOptions> record;  // leave a recording behind
  // Changes inside this run. Its keys and values serve no other run.
  std::optional<Interventions> interventions;
  // Asked between chunks of the prompt and between tokens; true ends the generation ("cancelled").
  std::function<bool()> cancelled;
};

}  // namespace cutaway
