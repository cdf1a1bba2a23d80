#include <fmt/format.h>

#include "sampling/sampler.h"
#include "trace/trace.h"

namespace cutaway::sampling {
namespace {

// NaN is in no range: the comparisons are written so that it fails them.
template <typename T>
Status in_range(const char* field, T value, T low, T high) {
  if (value >= low && value <= high) return {};
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("{} is {}, must be between {} and {}", field, value, low, high), field};
}

Status above_zero(const char* field, double value, double high) {
  if (value > 0 && value <= high) return {};
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("{} is {}, must be greater than 0 and at most {}", field, value, high),
               field};
}

}  // namespace

Status SamplingParams::validate(int32_t vocab_size) const {
  CUTAWAY_SPAN(span, "sampling::SamplingParams::validate", "temperature", temperature, "top_k",
               top_k, "top_p", top_p, "vocab_size", vocab_size);
  CUTAWAY_TRY(in_range("temperature", temperature, 0.0, 100.0));
  if (top_k < 0) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("top_k is {}, must be 0 (off) or greater", top_k), "top_k"};
  }
  CUTAWAY_TRY(in_range("top_p", top_p, 0.0, 1.0));
  CUTAWAY_TRY(in_range("min_p", min_p, 0.0, 1.0));
  CUTAWAY_TRY(above_zero("typical_p", typical_p, 1.0));
  CUTAWAY_TRY(above_zero("repeat_penalty", repeat_penalty, 100.0));
  CUTAWAY_TRY(in_range("presence_penalty", presence_penalty, -2.0, 2.0));
  CUTAWAY_TRY(in_range("frequency_penalty", frequency_penalty, -2.0, 2.0));
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0 || id >= vocab_size) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("logit_bias has the token id {}, must be between 0 and {}", id,
                               vocab_size - 1),
                   "logit_bias"};
    }
    if (!(bias >= -100 && bias <= 100)) {
      return Error{
          ErrorCode::kInvalidArgument,
          fmt::format("logit_bias of token {} is {}, must be between -100 and 100", id, bias),
          "logit_bias"};
    }
  }
  CUTAWAY_OUT(span, "ok", true);
  return {};
}

std::vector<std::string> SamplingParams::without_effect() const {
  CUTAWAY_SPAN(span, "sampling::SamplingParams::without_effect", "temperature", temperature);
  std::vector<std::string> names;
  if (temperature == 0) {
    if (top_k != 0) names.emplace_back("top_k");
    if (typical_p != 1) names.emplace_back("typical_p");
    if (top_p != 1) names.emplace_back("top_p");
    if (min_p != 0) names.emplace_back("min_p");
  }
  CUTAWAY_OUT(span, "n", names.size());
  return names;
}

}  // namespace cutaway::sampling
