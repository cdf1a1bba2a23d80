#include "api/retries.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>

#include "base/clock.h"
#include "trace/trace.h"

namespace cutaway::api {
namespace {

constexpr int kTries = 5;
constexpr double kLongestWait = 300;  // seconds; a server that asks for more gets no other request
constexpr double kLongestPause = 16;
constexpr useconds_t kPollUs = 100'000;
constexpr int kMaxStallSeconds = 3600;

bool is_busy(int status) {
  return status == 408 || status == 425 || status == 429 || status == 500 || status == 502 ||
         status == 503 || status == 504;
}

const char* status_name(int status) {
  switch (status) {
    case 400:
      return " (bad request)";
    case 401:
      return " (not authorised)";
    case 403:
      return " (forbidden)";
    case 404:
      return " (not found)";
    case 408:
      return " (request timeout)";
    case 410:
      return " (gone)";
    case 416:
      return " (range not satisfiable)";
    case 429:
      return " (too many requests)";
    case 500:
      return " (internal server error)";
    case 502:
      return " (bad gateway)";
    case 503:
      return " (service unavailable)";
    case 504:
      return " (gateway timeout)";
    default:
      return "";
  }
}

// The hub's own reason, where it gives one.
std::string hub_advice(int status, const std::string& code, bool with_token) {
  if (code == "GatedRepo" || status == 403) {
    return with_token ? "access needs its owner's consent: ask for it on the repository's page, "
                        "with the account of this token"
                      : "access needs its owner's consent and a token in HF_TOKEN";
  }
  if (status == 401) {
    return with_token ? "the token (HF_TOKEN, or the hub's token file) is not accepted, or there "
                        "is no such repository"
                      : "there is no such repository, or it is private and HF_TOKEN must hold a "
                        "token";
  }
  if (code == "RevisionNotFound") return "the repository has no such revision";
  if (code == "EntryNotFound") return "the repository has no such file";
  if (status == 404) return "there is no such repository";
  if (status == 429 && !with_token) return "a token in HF_TOKEN raises the limit";
  return "";
}

std::string plain_advice(int status) {
  if (status == 401) return "user and password can stand in the URL: https://USER:PASSWORD@HOST/…";
  if (status == 403) return "the link may have run out, or need a login";
  return "";
}

int stall_seconds() {
  const char* text = std::getenv("HF_HUB_DOWNLOAD_TIMEOUT");  // as the hub's own client names it
  const int seconds = text != nullptr ? std::atoi(text) : 0;
  return seconds > 0 ? std::min(seconds, kMaxStallSeconds) : HttpRequest().stall_seconds;
}

}  // namespace

HttpRequest plain_request(const DownloadSource& source) {
  CUTAWAY_SPAN(span, "api::plain_request", "source", source.shown);
  HttpRequest request;
  request.url = source.url;
  request.bearer_token = source.bearer_token;
  request.headers.emplace_back("User-Agent", "cutaway/" CUTAWAY_VERSION);
  request.stall_seconds = stall_seconds();
  CUTAWAY_OUT(span, "stall_seconds", request.stall_seconds);
  return request;
}

Error status_error(const HttpResponse& response, const DownloadSource& source) {
  CUTAWAY_SPAN(span, "api::status_error", "source", source.shown, "status", response.status);
  const int status = response.status;
  const std::string advice = source.hub ? hub_advice(status, response.headers.get("x-error-code"),
                                                     !source.bearer_token.empty())
                                        : plain_advice(status);
  std::string message =
      fmt::format("{}: HTTP status {}{}", source.shown, status, status_name(status));
  if (!advice.empty()) message += "; " + advice;
  CUTAWAY_OUT(span, "message", message);
  return Error{status == 404 || status == 410 ? ErrorCode::kNotFound : ErrorCode::kNetwork,
               message};
}

double retry_after_seconds(const std::string& header, int64_t now_unix) {
  CUTAWAY_SPAN(span, "api::retry_after_seconds", "header", header);
  double seconds = -1;
  std::tm date = {};
  if (!header.empty() && header.find_first_not_of("0123456789") == header.npos) {
    seconds = std::strtod(header.c_str(), nullptr);
  } else if (::strptime(header.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &date) != nullptr) {
    seconds = std::max(0.0, static_cast<double>(::timegm(&date) - now_unix));
  }
  CUTAWAY_OUT(span, "seconds", seconds);
  return seconds;
}

Retries::Retries(const DownloadSource& source, KeepGoing keep_going)
    : source_(source), keep_going_(std::move(keep_going)) {}

Status Retries::wait(double seconds, const std::string& why) {
  CUTAWAY_SPAN(span, "api::Retries::wait", "seconds", seconds, "why", why);
  const int64_t end = now_ns() + static_cast<int64_t>(seconds * 1e9);
  for (int64_t left; (left = end - now_ns()) > 0;) {
    const std::string what =
        fmt::format("{}; again in {} s", why, static_cast<int64_t>(std::ceil(left * 1e-9)));
    if (!keep_going_(what)) return Error{ErrorCode::kCancelled, "the download was cancelled"};
    ::usleep(static_cast<useconds_t>(std::min<int64_t>(kPollUs, left / 1000 + 1)));
  }
  CUTAWAY_OUT(span, "waited", true);
  return {};
}

Status Retries::after(const HttpOutcome& outcome, bool gained) {
  CUTAWAY_SPAN(span, "api::Retries::after", "status", outcome.response.status, "gained", gained);
  if (outcome.fault == HttpFault::kStopped) return outcome.status;
  const auto own_words = [&] {
    const Error& told = outcome.status.error();
    return source_.hub ? told.within(source_.shown) : told;
  };
  if (outcome.fault == HttpFault::kRefused) return own_words();
  // A host that has never answered will not in a few seconds either: a wrong name, no network.
  if (outcome.fault == HttpFault::kUnreachable && !ever_reached_) return own_words();
  if (outcome.fault != HttpFault::kUnreachable) ever_reached_ = true;
  const int status = outcome.response.status;
  const bool success = status >= 200 && status < 300;
  std::string why = "the connection broke";
  double pause = -1;
  Error error{ErrorCode::kNetwork, source_.shown + ": the file ended before its last byte"};
  if (outcome.fault != HttpFault::kNone) {
    error = own_words();
  } else if (!success) {
    error = status_error(outcome.response, source_);
    if (!is_busy(status)) return error;
    why = fmt::format("HTTP status {}", status);
    pause = retry_after_seconds(outcome.response.headers.get("retry-after"), wall_us() / 1'000'000);
    if (pause > kLongestWait) {
      return Error{error.code, fmt::format("{}; it asks to wait {} s", error.message, pause)};
    }
  }
  failures_ = gained ? 1 : failures_ + 1;
  if (failures_ >= kTries) {
    return Error{error.code, fmt::format("{} ({} tries)", error.message, failures_)};
  }
  if (pause < 0) pause = std::min(kLongestPause, std::ldexp(1.0, failures_ - 1));
  CUTAWAY_TRY(wait(pause, why));
  CUTAWAY_OUT(span, "failures", failures_);
  return {};
}

}  // namespace cutaway::api
