// Token ids to text as a stream: never emits half a character.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "text/tokenizer/tokenizer.h"

namespace cutaway::text {

// Holds back at most three bytes, those that could still become a character (a UTF-8 automaton over
// bytes; bytes that form none are passed through as they are: turning them into U+FFFD is the
// door's decision). One per sequence.
class StreamDetokenizer {
 public:
  // `special`: control tokens are written by their spelling, else they give no text.
  StreamDetokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool special);

  // The bytes that became final with this token; may be empty.
  std::string push(int32_t id);
  // The held bytes, at the end of the stream.
  std::string finish();
  size_t held() const { return held_.size(); }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool special_;
  std::string held_;
};

// Finds stop strings across token borders. Text that could be the beginning of a stop string is
// held back, so that none of it leaks.
class StopMatcher {
 public:
  // Error kInvalidArgument on an empty stop string.
  static Result<StopMatcher> create(std::vector<std::string> stops);

  struct Step {
    std::string text;      // bytes that are final and before any stop
    bool stopped = false;  // a stop string is complete; it and what follows are removed
    std::string stop;      // which one
  };
  // The earliest match wins; at the same place, the longest that is complete (one that is complete
  // does not wait for a longer one: the text before them is the same).
  Step push(std::string_view bytes);
  // What was held back, at the end. A stop string inside it (one that was complete while an
  // earlier, longer one was still possible) still cuts: then stopped() is true afterwards.
  std::string finish();
  bool stopped() const { return stopped_; }
  // The stop string that ended the text; empty while none did.
  const std::string& matched() const { return matched_; }

 private:
  Step settle(bool at_end);
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
  std::string matched_;
};

}  // namespace cutaway::text
