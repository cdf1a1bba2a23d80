// What captures, recordings and replays share: taps as the public headers name them.
#pragma once

#include "cutaway/options.h"
#include "inspect/capture.h"

namespace cutaway::api {

// Errors: those of trace::parse_taps.
Result<trace::TapSelection> select_taps(const std::vector<std::string>& names,
                                        const TapWindow& window, const arch::ModelShape& shape);
// `attention_top` itself; error kInvalidArgument when it is no number of keys.
Result<int64_t> top_keys(int64_t attention_top);
// [{"name","shape","dtype"}]
Json taps_json(const inspect::CaptureOutcome& outcome);

}  // namespace cutaway::api
