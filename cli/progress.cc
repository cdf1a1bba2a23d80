#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace cutaway::cli {
namespace {

constexpr int64_t kRedrawNs = 100'000'000;  // ten times a second at most
constexpr int64_t kMsToNs = 1'000'000;
constexpr int kWidestBar = 40, kNarrowestBar = 6;

std::string duration(double seconds) {
  const int64_t s = std::llround(seconds);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
}

std::string amount(double count, const std::string& unit) {
  return unit.empty() ? human_bytes(count) : fmt::format("{:.0f} {}", count, unit);
}

void to_stderr(const std::string& text) {
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

std::string progress_line(const Progress& progress, uint64_t gained, double seconds, int width) {
  const double done = static_cast<double>(progress.done);
  const double rate = seconds > 0.2 ? static_cast<double>(gained) / seconds : 0;
  std::string tail = progress.done > 0 ? amount(done, progress.unit) : "";
  double share = 0;
  if (progress.total > 0) {
    const double total = static_cast<double>(progress.total);
    share = std::clamp(done / total, 0.0, 1.0);
    tail = fmt::format("{:3.0f} %  {} of {}", std::floor(share * 100),
                       progress.unit.empty() ? human_bytes(done) : fmt::format("{:.0f}", done),
                       amount(total, progress.unit));
  }
  if (rate > 0) tail += fmt::format("  {}/s", amount(rate, progress.unit));
  if (rate > 0 && share > 0 && share < 1) {
    tail += fmt::format("  {} left", duration((static_cast<double>(progress.total) - done) / rate));
  }
  std::string line = progress.what + " ";
  const int room = width - static_cast<int>(display_width(line) + display_width(tail)) - 3;
  if (progress.total > 0 && room >= kNarrowestBar) {
    const int size = std::min(room, kWidestBar);
    const int full = static_cast<int>(share * size);
    for (int i = 0; i < size; ++i) line += i < full ? "━" : "─";
    line += "  ";
  }
  line += tail;
  // The last column stays free: some terminals wrap when it is written.
  if (static_cast<int>(display_width(line)) >= width) {
    line = fit(line, static_cast<size_t>(std::max(width - 1, 1)));
  }
  return line;
}

ProgressBar::ProgressBar(int delay_ms, bool shown)
    : terminal_(shown && is_terminal(STDERR_FILENO)),
      start_ns_(now_ns()),
      delay_ns_(delay_ms * kMsToNs) {}

ProgressFn ProgressBar::callback() {
  return [this](const Progress& progress) {
    const int64_t now = now_ns();
    if (progress.what != what_ || progress.done < stage_done_) {
      what_ = progress.what;
      stage_ns_ = now;
      stage_done_ = progress.done;
    }
    if (terminal_ && now - start_ns_ >= delay_ns_ && now - drawn_ns_ >= kRedrawNs) {
      draw(progress, now);
    }
    return !interrupted();
  };
}

void ProgressBar::draw(const Progress& progress, int64_t now) {
  drawn_ns_ = now;
  visible_ = true;
  const double seconds = static_cast<double>(now - stage_ns_) * 1e-9;
  to_stderr(
      "\r" +
      progress_line(progress, progress.done - stage_done_, seconds, terminal_width(STDERR_FILENO)) +
      "\033[K");
}

void ProgressBar::clear() {
  if (visible_) to_stderr("\r\033[K");
  visible_ = false;
}

}  // namespace cutaway::cli
