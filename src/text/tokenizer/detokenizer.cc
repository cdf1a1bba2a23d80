#include "text/tokenizer/detokenizer.h"

#include <algorithm>

#include "base/utf8.h"
#include "trace/trace.h"

namespace cutaway::text {

StreamDetokenizer::StreamDetokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool special)
    : tokenizer_(std::move(tokenizer)), special_(special) {
  CUTAWAY_SPAN(span, "text::StreamDetokenizer::StreamDetokenizer", "special", special);
}

std::string StreamDetokenizer::push(int32_t id) {
  CUTAWAY_SPAN(span, "text::StreamDetokenizer::push", "id", id);
  held_ += tokenizer_->token_bytes(id, special_);
  const size_t tail = utf8_incomplete_tail(held_);
  std::string out = held_.substr(0, held_.size() - tail);
  held_.erase(0, out.size());
  CUTAWAY_OUT(span, "text", out, "held", held_.size());
  return out;
}

std::string StreamDetokenizer::finish() {
  CUTAWAY_SPAN(span, "text::StreamDetokenizer::finish");
  std::string out = std::move(held_);
  held_.clear();
  CUTAWAY_OUT(span, "text", out);
  return out;
}

Result<StopMatcher> StopMatcher::create(std::vector<std::string> stops) {
  CUTAWAY_SPAN(span, "text::StopMatcher::create", "stops", stops.size());
  for (const std::string& stop : stops) {
    if (stop.empty()) {
      return Error{
          ErrorCode::kInvalidArgument,
          "stop: an empty stop string would end every answer before it begins; leave it out",
          "stop"};
    }
  }
  StopMatcher matcher;
  matcher.stops_ = std::move(stops);
  // Longest first, so that the first that matches at a place is the longest there.
  std::sort(matcher.stops_.begin(), matcher.stops_.end(),
            [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  return matcher;
}

// Takes from held_ what is decided: up to the first place where a stop string is complete, or
// (unless this is the end) could still become so.
StopMatcher::Step StopMatcher::settle(bool at_end) {
  CUTAWAY_SPAN(span, "text::StopMatcher::settle", "at_end", at_end);
  Step step;
  const std::string_view held = held_;
  size_t pos = 0;
  bool undecided = false;
  for (; pos < held.size(); ++pos) {
    const std::string_view rest = held.substr(pos);
    for (const std::string& stop : stops_) {
      if (rest.starts_with(stop)) {
        step.stopped = stopped_ = true;
        step.stop = stop;
        matched_ = step.stop;
        break;
      }
      undecided |= !at_end && std::string_view(stop).starts_with(rest);
    }
    if (stopped_ || undecided) break;
  }
  step.text = held_.substr(0, pos);
  held_.erase(0, stopped_ ? std::string::npos : pos);
  return step;
}

StopMatcher::Step StopMatcher::push(std::string_view bytes) {
  CUTAWAY_SPAN(span, "text::StopMatcher::push", "bytes", bytes);
  Step step;
  if (stopped_) {
    step.stopped = true;
    return step;
  }
  held_ += bytes;
  step = settle(false);
  CUTAWAY_OUT(span, "text", step.text, "stopped", step.stopped, "held", held_.size());
  return step;
}

std::string StopMatcher::finish() {
  CUTAWAY_SPAN(span, "text::StopMatcher::finish");
  std::string out = settle(true).text;
  held_.clear();
  CUTAWAY_OUT(span, "text", out, "stopped", stopped_);
  return out;
}

}  // namespace cutaway::text
