// How well a model predicts a text, and what a quantised file lost against another one: the numbers
// behind `cutaway eval`. docs/eval.md says what each means.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "cutaway/model.h"
#include "cutaway/options.h"

namespace cutaway {

struct EvaluationRequest {
  // Exactly one of these two:
  std::optional<std::string> text;             // raw; control tokens spelled in it are plain text
  std::optional<std::vector<int32_t>> tokens;  // ids, taken as they are
  int64_t max_tokens = 0;                      // of the text; 0: all
  // Tokens of a window that are context only. Not given: half of the window. The first token of a
  // window is never scored.
  std::optional<int64_t> warmup;
  bool layers = true;   // with a baseline of the same layers and width: damage by layer
  ProgressFn progress;  // tokens done, of all; false ends it: whole windows stay
};

// The text is cut into windows of options.context tokens (0: 512, or the context that the model was
// trained for when that is less; a shorter text is one window), each computed from an empty
// context; what does not fill a window at the end is left out and counted. Where the vocabulary
// puts a BOS token before a text, it takes the place of every window's first token. Both models
// belong to one engine, and have the same vocabulary; `baseline` may be null. Returns
// {"model","tokens","windows","window","warmup","scored","left_out",
//  "perplexity":{"value","standard_error"},"nll":{"mean","standard_error"},"top1_accuracy",
//  "baseline":{"model","perplexity":{…},"nll":{…},"top1_accuracy",
//    "perplexity_ratio":{"value","standard_error"},"top1_agreement":{"value","standard_error"},
//    "kl":{"mean","standard_error","median","p90","p99","max"},
//    "layers":[{"layer","relative_error","cosine"}]},
//  "timings":{"total_ms","tokens_per_second"},"warnings","cancelled"}
// where "baseline" is there with one, the numbers are null when no window is whole, and "layer" −1
// is the embedding. Errors: kInvalidArgument (field named; vocabularies that differ: the first id),
// kTooLarge (a window that memory cannot hold), kInvalidFile (logits that are not finite).
Result<Json> evaluate(const Model& model, const Model* baseline, const EvaluationRequest& request,
                      const SessionOptions& options);

}  // namespace cutaway
