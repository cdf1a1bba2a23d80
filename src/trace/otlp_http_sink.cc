#include "trace/otlp_http_sink.h"

#include <fmt/format.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "base/guard.h"
#include "base/http_client.h"
#include "base/json.h"
#include "base/utf8.h"
#include "trace/otlp_encoder.h"

namespace cutaway::trace {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kReadAnswer = 64 * 1024;  // bytes of an answer
constexpr size_t kShownWords = 200;        // bytes of a collector's words in a warning
constexpr milliseconds kLongestRetryAfter{300'000};

// What a request came to.
struct Answer {
  bool delivered = false;
  bool again = false;   // another try may do
  bool nobody = false;  // nothing listens there
  std::optional<milliseconds> after;
  std::string why;       // it was not delivered
  uint64_t refused = 0;  // spans of a partial success
  std::string words;     // the collector's, of a partial success
};

std::string shown(const std::string& text) {
  std::string out = utf8_replace_invalid(text.substr(0, kShownWords));
  if (text.size() > kShownWords) out += "…";
  return out;
}

// Seconds, or a date.
std::optional<milliseconds> parse_retry_after(const std::string& text) {
  if (text.empty()) return {};
  int64_t seconds = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (fault != std::errc() || end != text.data() + text.size()) {
    struct tm date = {};
    const char* rest = ::strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &date);
    if (rest == nullptr || *rest != '\0') return {};
    seconds = ::timegm(&date) - ::time(nullptr);
  }
  constexpr int64_t kLongest = kLongestRetryAfter.count() / 1000;
  return milliseconds(1000 * std::clamp<int64_t>(seconds, 0, kLongest));
}

// A 2xx answer's body: {} when everything was taken, else partialSuccess.
void read_partial_success(const std::string& body, Answer& answer) {
  const auto json = parse_json(body);
  if (!json.ok() || !json->is_object()) return;
  for (const char* key : {"partialSuccess", "partial_success"}) {
    if (!json->contains(key) || !json->at(key).is_object()) continue;
    const Json& partial = json->at(key);
    for (const char* count : {"rejectedSpans", "rejected_spans"}) {
      if (!partial.contains(count)) continue;
      const Json& n = partial.at(count);  // 64-bit numbers may be text
      const std::string text = n.is_string() ? n.get<std::string>() : n.dump();
      std::from_chars(text.data(), text.data() + text.size(), answer.refused);
    }
    for (const char* words : {"errorMessage", "error_message"}) {
      if (partial.contains(words) && partial.at(words).is_string()) {
        answer.words = partial.at(words).get<std::string>();
      }
    }
  }
}

class Sender final : public OtlpHttpSink {
 public:
  explicit Sender(OtlpSettings settings)
      : settings_(std::move(settings)),
        shown_url_(url_without_secrets(settings_.url)),
        encoder_(settings_.resource) {
    // Signals are for the program's own threads.
    sigset_t all, saved;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &saved);
    try {
      thread_ = std::thread([this] { loop(); });
    } catch (...) {
      ::pthread_sigmask(SIG_SETMASK, &saved, nullptr);
      throw;
    }
    ::pthread_sigmask(SIG_SETMASK, &saved, nullptr);
    ::pthread_setname_np(thread_.native_handle(), "cutaway-otlp");
  }

  ~Sender() override {
    finish();
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  void write(const Record& record) override {
    span_.clear();
    if (!encoder_.add(record, span_)) return;
    bool full_batch;
    {
      const std::lock_guard lock(mutex_);
      ++counts_.spans;
      if (queued_bytes_ + span_.size() > settings_.queue_bytes) {
        ++counts_.queue_full;
        return;
      }
      if (queue_.empty()) oldest_ = Clock::now();
      queued_bytes_ += span_.size();
      queue_.push_back(span_);
      full_batch = queue_.size() == settings_.batch_spans;
    }
    if (full_batch) wake_.notify_all();
  }

  void finish() override {
    std::unique_lock lock(mutex_);
    if (queue_.empty() && in_flight_ == 0) return;
    finish_at_ = Clock::now() + settings_.timeout;
    wake_.notify_all();
    // The sender gives everything up by then; it asks at least once a second.
    idle_.wait(lock, [&] { return queue_.empty() && in_flight_ == 0; });
    finish_at_.reset();
  }

  std::vector<std::string> warnings() const override {
    std::vector<std::string> out = settings_.resource.warnings;
    const std::lock_guard lock(mutex_);
    if (const uint64_t lost = counts_.queue_full + counts_.given_up; lost > 0) {
      std::string text = fmt::format("{} of {} spans of the trace did not reach {}", lost,
                                     counts_.spans, shown_url_);
      if (counts_.queue_full > 0) {
        text += fmt::format("; {} came while {} KiB of them were waiting", counts_.queue_full,
                            settings_.queue_bytes / 1024);
      }
      if (counts_.given_up > 0) {
        text += fmt::format("; {} were given up", counts_.given_up);
        if (!why_.empty()) text += fmt::format(" ({})", why_);
      }
      out.push_back(std::move(text));
    }
    if (counts_.refused > 0 || !words_.empty()) {
      out.push_back(fmt::format("{} refused {} of {} spans{}", shown_url_, counts_.refused,
                                counts_.spans, words_.empty() ? "" : ": " + words_));
    }
    return out;
  }

  Counts counts() const override {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  void loop() noexcept {
    for (;;) {
      std::string body;
      {
        std::unique_lock lock(mutex_);
        in_flight_ = 0;
        if (queue_.empty()) idle_.notify_all();
        wait_for_batch(lock);
        if (queue_.empty()) return;  // stopped
        if (!take_batch(body)) {
          drop(queue_.size() + in_flight_, "not enough memory");
          queue_.clear();
          queued_bytes_ = 0;
          continue;
        }
      }
      deliver(body);
    }
  }

  void wait_for_batch(std::unique_lock<std::mutex>& lock) {
    for (;;) {
      if (stop_) return;
      if (queue_.empty()) {
        wake_.wait(lock);
        continue;
      }
      const auto until = oldest_ + settings_.delay;
      if (finish_at_ || queue_.size() >= settings_.batch_spans || Clock::now() >= until) return;
      wake_.wait_until(lock, until);
    }
  }

  // False when memory ran out.
  bool take_batch(std::string& body) noexcept {
    try {
      body = encoder_.head();
      for (; in_flight_ < settings_.batch_spans && !queue_.empty(); ++in_flight_) {
        if (in_flight_ > 0 && body.size() + queue_.front().size() > settings_.batch_bytes) break;
        if (in_flight_ > 0) body += ',';
        body += queue_.front();
        queued_bytes_ -= queue_.front().size();
        queue_.pop_front();
      }
      body += OtlpEncoder::kTail;
      oldest_ = Clock::now();
      return true;
    } catch (...) {
      return false;
    }
  }

  // Tries until the batch is delivered or given up.
  void deliver(const std::string& body) noexcept {
    const auto give_up_at = Clock::now() + settings_.give_up_after;
    milliseconds pause = settings_.first_backoff;
    for (int n = 1;; ++n) {
      const bool at_the_end = finishing();
      const Answer answer = guarded_post(body);
      std::unique_lock lock(mutex_);
      ++counts_.requests;
      counts_.retries += n > 1;
      if (answer.delivered) return count_delivery(answer);
      // A fifth more or less, so that many processes do not come back as one.
      const milliseconds wait = answer.after.value_or(pause + pause * (7 * n % 5 - 2) / 10);
      const auto end = finish_at_ ? std::min(*finish_at_, give_up_at) : give_up_at;
      const bool hopeless = at_the_end && answer.nobody;
      if (!answer.again || hopeless || Clock::now() + wait > end) {
        drop(in_flight_, answer.why);
        if (finish_at_ && (hopeless || Clock::now() + wait > *finish_at_)) {
          drop(queue_.size(), answer.why);
          queue_.clear();
          queued_bytes_ = 0;
        }
        return;
      }
      // The end cuts a pause short that the collector did not ask for.
      wake_.wait_for(lock, wait,
                     [&] { return stop_ || (finish_at_ && !at_the_end && !answer.after); });
      pause = std::min(2 * pause, settings_.longest_backoff);
    }
  }

  void count_delivery(const Answer& answer) {
    const uint64_t refused = std::min<uint64_t>(answer.refused, in_flight_);
    counts_.delivered += in_flight_ - refused;
    counts_.refused += refused;
    if (!answer.words.empty()) words_ = shown(answer.words);
  }

  void drop(uint64_t spans, const std::string& why) {
    counts_.given_up += spans;
    if (why_.empty()) why_ = why;
  }

  bool finishing() const {
    const std::lock_guard lock(mutex_);
    return finish_at_.has_value();
  }

  Answer guarded_post(const std::string& body) noexcept {
    try {
      return post(body);
    } catch (...) {  // memory that runs out
      Answer answer;
      answer.again = true;
      return answer;
    }
  }

  Answer post(const std::string& body) const {
    HttpRequest request;
    request.url = settings_.url;
    request.headers = settings_.headers;
    request.headers.emplace_back("Content-Type", "application/json");
    request.headers.emplace_back("User-Agent", "cutaway");
    request.timeout_ms = settings_.timeout.count();
    std::string text;
    HttpHandlers handlers;
    handlers.on_body = [&](std::span<const uint8_t> bytes) -> Status {
      text.append(reinterpret_cast<const char*>(bytes.data()),
                  std::min(bytes.size(), kReadAnswer - text.size()));
      // The status said what matters.
      if (text.size() == kReadAnswer) return Error{ErrorCode::kTooLarge, "a long answer"};
      return {};
    };
    handlers.keep_going = [&] {
      const std::lock_guard lock(mutex_);
      return !stop_ && !(finish_at_ && Clock::now() >= *finish_at_);
    };
    const HttpOutcome outcome = http_post(request, body, handlers);
    return judge(outcome, text);
  }

  Answer judge(const HttpOutcome& outcome, const std::string& text) const {
    Answer answer;
    const int status = outcome.response.status;
    const bool answered =
        outcome.fault == HttpFault::kNone || (outcome.fault == HttpFault::kStopped &&
                                              outcome.status.error().code != ErrorCode::kCancelled);
    if (answered && status >= 200 && status < 300) {
      answer.delivered = true;
      read_partial_success(text, answer);
      return answer;
    }
    if (answered) {
      answer.why = fmt::format("the answer was {}", status);
      const std::string& words = outcome.response.body_head;
      if (!words.empty() && utf8_valid(words)) answer.why += ", " + shown(words);
      answer.again = status == 429 || status == 502 || status == 503 || status == 504;
      answer.after = parse_retry_after(outcome.response.headers.get("retry-after"));
      return answer;
    }
    answer.nobody = outcome.fault == HttpFault::kUnreachable;
    answer.again = answer.nobody || outcome.fault == HttpFault::kInterrupted;
    answer.why = outcome.fault == HttpFault::kStopped
                     ? fmt::format("no answer within {} ms of the end", settings_.timeout.count())
                     : outcome.status.error().message;
    return answer;
  }

  const OtlpSettings settings_;
  const std::string shown_url_;
  // The tracer's background thread's.
  OtlpEncoder encoder_;
  std::string span_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_, idle_;
  std::deque<std::string> queue_;
  size_t queued_bytes_ = 0;
  size_t in_flight_ = 0;      // spans of the batch that is being delivered
  Clock::time_point oldest_;  // when the first span in the queue came, or the last batch left
  std::optional<Clock::time_point> finish_at_;
  bool stop_ = false;
  Counts counts_;
  std::string why_;    // the first batch that was given up was not delivered
  std::string words_;  // of the last partial success
  std::thread thread_;
};

}  // namespace

Result<std::shared_ptr<OtlpHttpSink>> make_otlp_http_sink(OtlpSettings settings) {
  return guarded("sending the trace", [&]() -> Result<std::shared_ptr<OtlpHttpSink>> {
    return std::shared_ptr<OtlpHttpSink>(std::make_shared<Sender>(std::move(settings)));
  });
}

}  // namespace cutaway::trace
