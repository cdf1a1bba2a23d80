#include "api/taps.h"

#include "trace/trace.h"

namespace cutaway::api {

Result<trace::TapSelection> select_taps(const std::vector<std::string>& names,
                                        const TapWindow& window, const arch::ModelShape& shape) {
  CUTAWAY_SPAN(span, "api::select_taps", "names", names.size());
  CUTAWAY_ASSIGN(trace::TapSelection out,
                 inspect::select_taps(
                     {names, window.layers, window.heads, window.positions, window.steps}, shape));
  CUTAWAY_OUT(span, "taps", out.taps.size());
  return out;
}

Result<int64_t> top_keys(int64_t attention_top) {
  CUTAWAY_SPAN(span, "api::top_keys", "attention_top", attention_top);
  if (attention_top < 0 || attention_top > kernels::kMaxTopKeys) {
    return Error{ErrorCode::kInvalidArgument,
                 "attention_top is " + std::to_string(attention_top) + ", must be 1 to " +
                     std::to_string(kernels::kMaxTopKeys) + " keys of each row",
                 "attention_top"};
  }
  CUTAWAY_OUT(span, "keys", attention_top);
  return attention_top;
}

Json taps_json(const inspect::CaptureOutcome& outcome) {
  CUTAWAY_SPAN(span, "api::taps_json", "taps", outcome.taps.size());
  Json taps = Json::array();
  for (const inspect::CapturedTap& tap : outcome.taps) {
    taps.push_back({{"name", tap.name}, {"shape", tap.shape}, {"dtype", tap.dtype}});
  }
  CUTAWAY_OUT(span, "taps", taps.size());
  return taps;
}

}  // namespace cutaway::api
