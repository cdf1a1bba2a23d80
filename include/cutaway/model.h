// A loaded model, and sessions on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "cutaway/generation.h"
#include "cutaway/options.h"
#include "cutaway/views.h"

namespace cutaway {

// One sequence: its KV pages and the tokens in them. A generation whose prompt begins with tokens
// that are there already does not compute them again; the answer's bits are the same either way.
// One call at a time.
class Session {
 public:
  virtual ~Session() = default;

  // Errors: kInvalidArgument (field named), kTooLarge (a prompt that does not fit: both counts; a
  // prompt and max_tokens whose KV cache the available memory cannot hold: both sizes),
  // kUnsupported (messages, and the model has no chat template). `on_token` may be empty.
  virtual Result<Generation> generate(const GenerateRequest& request, const StreamFn& on_token) = 0;
};

struct CaptureRequest {
  std::optional<std::string> text;  // raw; or
  std::optional<std::vector<int32_t>> tokens;
  bool parse_special = false;
  std::vector<std::string> taps;  // names and patterns (docs/capture.md); "logits" is one
  TapWindow window;               // `steps` has no meaning here
  int64_t attention_top = 0;      // as in RecordOptions
  std::string output;             // path of the .safetensors file
  // Changes inside the run, whose prompt is the text; taps show the changed values. Tokens are not
  // chosen here: kInvalidArgument when some are forced or banned.
  std::optional<Interventions> interventions;
  std::function<bool()> cancelled;  // asked between passes; true ends it with kCancelled
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const std::string& name() const = 0;
  virtual double load_ms() const = 0;

  // Error kTooLarge / kInvalidArgument when the options cannot be met (context of 0 or negative,
  // …).
  virtual Result<std::unique_ptr<Session>> start(const SessionOptions& options) const = 0;

  // {"model","tokens":[{"id","piece","bytes" (array),"begin","end","special"}],"n", and with
  // `merges`
  // "words":[{"text","begin","end","merges":[{"rank","left","right","begin","end"}],"ids"}]}
  virtual Result<Json> tokenize(const std::string& text, bool parse_special, bool merges) const = 0;

  // Runs a text through the model and writes the named taps. Returns `capture --json`.
  virtual Result<Json> capture(const CaptureRequest& request,
                               const SessionOptions& options) const = 0;

  // What each layer would have said: schema/lens.schema.json. Errors: kInvalidArgument (field
  // named; a layer that is not there, no tokens), kTooLarge (a text that does not fit the context;
  // more than 400,000 tokens in all cells), kCancelled.
  virtual Result<Json> lens(const LensRequest& request, const SessionOptions& options) const = 0;
  // Where each head looked: schema/attention.schema.json. Errors as those of lens; kTooLarge also
  // for more matrices than request.most_pattern_bytes.
  virtual Result<Json> attention(const AttentionRequest& request,
                                 const SessionOptions& options) const = 0;

  // The tokens behind ids: [{"id","piece","bytes","special"}]. Error kInvalidArgument: an id that
  // the vocabulary does not have.
  virtual Result<Json> describe(const std::vector<int32_t>& ids) const = 0;

  // `info -m --json`: {"name","path","format","bytes","architecture","parameters","bits_per_weight"
  // (of the file's tensors),"packed_bytes" (of the weights in
  // memory),"context_length",…,"tokenizer", "licence":{"id","name","link"},"kv_bytes_per_token" and
  // "kv_bytes_of_context" (by cache type),
  // "types":[{"dtype","tensors","parameters","bytes","bits_per_weight"}],"metadata":{…}}; with
  // several shards "files":[{"path","bytes"}]; with `tensors`
  // "tensors":[{"name","dtype","shape","bytes","offset" (in its file),"shard" (from 1)}].
  virtual Json info(bool tensors) const = 0;

  // True when the file carries a chat template.
  virtual bool has_chat_template() const = 0;
};

// `bench`: synthetic prefill and decode speed. One test of `prefill`, and one of `decode` for every
// depth and batch.
struct BenchRequest {
  int64_t prefill = 512;  // tokens; 0 leaves the test out
  int64_t decode = 128;
  std::vector<int64_t> batch = {1};
  std::vector<int64_t> depth = {0};  // tokens in the cache before decode is timed
  int repetitions = 5;
  // Measure what the machine can do at most, before and after the tests (about a second).
  bool limits = true;
  // Asked before every repetition and while a cache is filled: `what` is the test, `done` and
  // `total` count repetitions. False ends the bench; what was measured is returned. May be empty.
  ProgressFn progress;
};
// {"runs":[{"test","batch","depth","threads","tps":{"median","min","max"},"bytes_per_token",
// "achieved_gbps","limit_gbps","ops_per_token","achieved_gops","limit_gops"}],"limits":{"read_gbps",
// "int8_gops","f32_gops",…},"session":{…},"warnings":[…],"cancelled"} — the door adds "machine" and
// "model". bytes_per_token: the packed matrices that a token multiplies (each read once a pass),
// and its keys and values. ops: two per multiply-add of those matrices, attention apart.
// limit_gops: of the arithmetic that the matrices' layouts take (8-bit integers, floats, or both in
// their shares). Without `limits`, or where there is no memory to measure them (a warning says so),
// the limit keys and "limits" are not there.
Result<Json> bench(const Model& model, const BenchRequest& request, const SessionOptions& options);

}  // namespace cutaway
