// The segments of a prompt as one text.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/special_matcher.h"
#include "text/tokenizer/tokenizer.h"

namespace cutaway::text {

// The segments as one text, and which parts of it are trusted.
struct JoinedText {
  std::string storage;  // used when there is more than one segment
  std::string_view text;
  std::vector<SpecialMatcher::Run> runs;

  explicit JoinedText(std::span<const Segment> segments) {
    if (segments.size() == 1) {
      text = segments[0].text;
    } else {
      for (const Segment& segment : segments) storage += segment.text;
      text = storage;
    }
    size_t end = 0;
    for (const Segment& segment : segments) {
      if (segment.text.empty()) continue;
      end += segment.text.size();
      if (!runs.empty() && runs.back().trusted == segment.parse_special) {
        runs.back().end = end;
      } else {
        runs.push_back({end, segment.parse_special});
      }
    }
  }
  JoinedText(const JoinedText&) = delete;
  JoinedText& operator=(const JoinedText&) = delete;
};

}  // namespace cutaway::text
