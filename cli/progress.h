// A progress bar on stderr. Nothing appears when stderr is no terminal.
#pragma once

#include <cstdint>
#include <string>

#include "cutaway/options.h"

namespace cutaway::cli {

class ProgressBar {
 public:
  // Appears after `delay_ms`, so that short work shows nothing; never when not `shown`.
  explicit ProgressBar(int delay_ms, bool shown = true);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // To hand to the library; this object must outlive it. Returns false after Ctrl-C.
  ProgressFn callback();
  // Removes the bar from the screen.
  void clear();

 private:
  void draw(const Progress& progress, int64_t now);

  bool visible_ = false;
  bool terminal_;
  int64_t start_ns_, delay_ns_;
  int64_t drawn_ns_ = 0;
  std::string what_;  // the stage that rate and time left belong to
  int64_t stage_ns_ = 0;
  uint64_t stage_done_ = 0;  // what was there when it began: a download that goes on
};

// The line itself, at most `width` columns: "download ━━━━━━      42 %  39.0 MB of 92.9 MB …".
// `gained` of the bytes came in the last `seconds`: what speed and time left are reckoned from.
std::string progress_line(const Progress& progress, uint64_t gained, double seconds, int width);

}  // namespace cutaway::cli
