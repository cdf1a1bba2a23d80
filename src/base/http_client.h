// HTTP and HTTPS from this side: one streamed GET, one POST. The only place that knows libcurl,
// which is opened when the first request is made: a program that makes none does not pay for it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace cutaway {

// Names in lower case, in the order of arrival.
class HttpHeaders {
 public:
  void add(std::string_view name, std::string_view value);
  // The last value of that name; empty when there is none.
  std::string get(std::string_view name) const;
  void clear() { entries_.clear(); }

 private:
  std::vector<std::pair<std::string, std::string>> entries_;
};

struct HttpRequest {
  std::string url;  // http or https; user:password@ is honoured
  std::vector<std::pair<std::string, std::string>> headers;
  // Sent as "Authorization: Bearer …" to the origin of `url` alone: a redirect to another scheme,
  // host or port goes without it.
  std::string bearer_token;
  int stall_seconds = 30;  // without a byte for so long: given up, as kInterrupted
  int64_t timeout_ms = 0;  // for all of it, as kInterrupted; 0: no limit
};

struct HttpResponse {
  int status = 0;
  std::string url;  // after redirects
  HttpHeaders headers;
  HttpHeaders redirect_headers;  // of every redirect on the way
  std::string body_head;         // at most 4096 bytes of a body whose status is no 2xx
};

struct HttpHandlers {
  // Once, when the headers of a 2xx response are there. An error ends the request.
  std::function<Status(const HttpResponse&)> on_response;
  std::function<Status(std::span<const uint8_t>)> on_body;  // of a 2xx response
  // Asked at least once a second; false ends the request with kCancelled.
  std::function<bool()> keep_going;
};

enum class HttpFault {
  kNone,         // a response came, whatever its status
  kStopped,      // a handler said so
  kUnreachable,  // no such host, or nothing listens there
  kInterrupted,  // cut short, reset or stalled: another try may do
  kRefused,      // TLS, a proxy, a bad URL or redirect: another try would be the same
};

struct HttpOutcome {
  HttpFault fault = HttpFault::kNone;
  Status status;  // an error exactly when `fault` is not kNone
  HttpResponse response;
};

// Follows up to ten redirects, never from https to http. The proxies of the environment
// (https_proxy, http_proxy, all_proxy, no_proxy) are used, never for loopback addresses;
// SSL_CERT_FILE and CURL_CA_BUNDLE name other certificates.
HttpOutcome http_get(const HttpRequest& request, const HttpHandlers& handlers);
// One POST of `body`, which outlives the call. Follows no redirect: its headers may hold keys.
HttpOutcome http_post(const HttpRequest& request, std::string_view body,
                      const HttpHandlers& handlers);

// Parts of an http(s) URL. Error kInvalidArgument names what is wrong with it.
struct Url {
  std::string scheme, host, port, path;  // path as it is written there, query apart; port explicit
};
Result<Url> parse_url(const std::string& url);
// The URL without user, password, query and fragment, which may hold secrets: for messages.
std::string url_without_secrets(const std::string& url);
// Percent-encoding of one path segment or, with `keep_slashes`, of a path; and back.
std::string url_encode(std::string_view text, bool keep_slashes);
std::string url_decode(std::string_view text);
bool is_loopback(const std::string& host);

}  // namespace cutaway
