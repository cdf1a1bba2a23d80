// A recording as one document: what it says by itself, and what a replay with its model adds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "cutaway/model.h"

namespace cutaway {

// How much of a long run is shown. What is left out is listed in the document, with the command
// that gives it.
struct ReportLimits {
  int64_t choices = 400;                      // with their ledgers; of the rest the tokens
  int64_t lens_positions = 96;                // the last ones
  int64_t pattern_bytes = int64_t{16} << 20;  // of attention: of fewer layers when not all fit
  int64_t trace_lines = 12000;                // of the run's own trace: the first ones
};

struct ReportRequest {
  std::string directory;
  ReportLimits limits = {};
  // Why there is no model, where there is none: shown in its place.
  std::string without_model;
  std::function<bool()> cancelled;  // asked between passes; true ends it with kCancelled
};

// {"view":"report","recording","run" (run.json's description),"prompt":[token…],"answer":[{"step",
// "position","token","ms","logits_xxh3","prob","entropy","ledger" (null beyond the limit)}],
// "pieces":{id: piece or bytes},"replay" (null without a model),"lens","attention" (views of prompt
// and answer, or null),"trace":[line…] (the run's own, schema/trace.schema.json; null where the
// recording holds none),"without_model","left_out":[{"what","shown","of","how"}],"warnings"}, for
// html_page("report", …). `model` may be null: then only what the recording says by itself is
// there. Errors: those of read_recording and replay.
Result<Json> report(const ReportRequest& request, const Model* model);

}  // namespace cutaway
