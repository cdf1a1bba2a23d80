#include "base/http_client.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

namespace cutaway {
namespace {

constexpr size_t kKeptBody = 4096;
constexpr size_t kMaxHeaders = 256 * 1024;  // bytes of one response
constexpr int kMaxRedirects = 10;
constexpr long kConnectSeconds = 20;
constexpr long kReadBuffer = 256 * 1024;

// libcurl and the thirty libraries behind it add milliseconds and megabytes to every start when
// they are linked: they are opened here instead.
struct Curl {
  decltype(&curl_global_init) global_init = nullptr;
  decltype(&curl_easy_init) easy_init = nullptr;
  decltype(&curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&curl_easy_perform) easy_perform = nullptr;
  decltype(&curl_easy_strerror) easy_strerror = nullptr;
  decltype(&curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&curl_easy_setopt) easy_setopt = nullptr;
  decltype(&curl_slist_append) slist_append = nullptr;
  decltype(&curl_slist_free_all) slist_free_all = nullptr;
  decltype(&curl_url) url = nullptr;
  decltype(&curl_url_cleanup) url_cleanup = nullptr;
  decltype(&curl_url_get) url_get = nullptr;
  decltype(&curl_url_set) url_set = nullptr;
  decltype(&curl_free) free = nullptr;
  std::string fault;  // why it is not there
};

template <typename F>
void find(void* library, const char* name, F& out, std::string& fault) {
  out = reinterpret_cast<F>(::dlsym(library, name));
  if (out == nullptr) fault = fmt::format("libcurl has no {}; it is too old", name);
}

Curl open_curl() {
  Curl c;
  void* library = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* words = ::dlerror();
    c.fault = fmt::format(
        "cannot open libcurl, which downloads and collectors need (Debian: libcurl4): {}",
        words != nullptr ? words : "no reason given");
    return c;
  }
  find(library, "curl_global_init", c.global_init, c.fault);
  find(library, "curl_easy_init", c.easy_init, c.fault);
  find(library, "curl_easy_cleanup", c.easy_cleanup, c.fault);
  find(library, "curl_easy_perform", c.easy_perform, c.fault);
  find(library, "curl_easy_strerror", c.easy_strerror, c.fault);
  find(library, "curl_easy_getinfo", c.easy_getinfo, c.fault);
  find(library, "curl_easy_setopt", c.easy_setopt, c.fault);
  find(library, "curl_slist_append", c.slist_append, c.fault);
  find(library, "curl_slist_free_all", c.slist_free_all, c.fault);
  find(library, "curl_url", c.url, c.fault);
  find(library, "curl_url_cleanup", c.url_cleanup, c.fault);
  find(library, "curl_url_get", c.url_get, c.fault);
  find(library, "curl_url_set", c.url_set, c.fault);
  find(library, "curl_free", c.free, c.fault);
  if (c.fault.empty() && c.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    c.fault = "libcurl did not start";
  }
  return c;
}

const Curl& curl() {
  static const Curl opened = open_curl();
  return opened;
}

struct CurlUrlFree {
  void operator()(CURLU* url) const { curl().url_cleanup(url); }
};
using UrlHandle = std::unique_ptr<CURLU, CurlUrlFree>;

Error bad_url(const std::string& url, const std::string& why) {
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("'{}' cannot be fetched: {}", url_without_secrets(url), why), "url"};
}

// `base` may be empty; relative references are resolved against it.
Result<UrlHandle> open_url(const std::string& base, const std::string& url) {
  if (!curl().fault.empty()) return Error{ErrorCode::kUnsupported, curl().fault};
  UrlHandle handle(curl().url());
  if (!handle) return Error{ErrorCode::kTooLarge, "not enough memory for a URL"};
  for (const std::string& part : {base, url}) {
    if (part.empty()) continue;
    if (curl().url_set(handle.get(), CURLUPART_URL, part.c_str(), CURLU_URLENCODE) != CURLUE_OK) {
      return bad_url(part, "it is malformed, or neither http nor https");
    }
  }
  return handle;
}

std::string part_of(CURLU* handle, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl().url_get(handle, part, &text, flags) != CURLUE_OK || text == nullptr) return "";
  std::string out = text;
  curl().free(text);
  return out;
}

std::string environment(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  }
  return "";
}

struct EasyFree {
  void operator()(CURL* easy) const { curl().easy_cleanup(easy); }
};
struct ListFree {
  void operator()(curl_slist* list) const { curl().slist_free_all(list); }
};
using List = std::unique_ptr<curl_slist, ListFree>;

bool append(List& list, const std::string& line) {
  curl_slist* longer = curl().slist_append(list.get(), line.c_str());
  if (longer == nullptr) return false;
  (void)list.release();
  list.reset(longer);
  return true;
}

bool is_success(int status) { return status >= 200 && status < 300; }

// One request without redirects: what libcurl's callbacks fill.
struct Exchange {
  const HttpHandlers& handlers;
  HttpResponse response;
  Status stopped;  // by a handler
  size_t header_bytes = 0;
  bool answered = false;  // on_response was called
  bool threw = false;     // nothing may be thrown through libcurl, which is C

  Status begin_body() {
    if (answered) return {};
    answered = true;
    return is_success(response.status) && handlers.on_response ? handlers.on_response(response)
                                                               : Status();
  }

  bool header(std::string_view line) {
    header_bytes += line.size();
    if (header_bytes > kMaxHeaders) {
      stopped = Error{ErrorCode::kNetwork, "the response's headers are too long"};
      return false;
    }
    while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
    if (line.starts_with("HTTP/")) {  // of an interim response, of a proxy's, or the last one
      response.headers.clear();
      const size_t space = line.find(' ');
      response.status = space == line.npos ? 0 : std::atoi(line.data() + space + 1);
    } else if (const size_t colon = line.find(':'); colon != line.npos) {
      std::string_view value = line.substr(colon + 1);
      while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) {
        value.remove_prefix(1);
      }
      response.headers.add(line.substr(0, colon), value);
    }
    return true;
  }

  bool body(std::span<const uint8_t> bytes) {
    if (!is_success(response.status)) {
      const size_t room = kKeptBody - std::min(kKeptBody, response.body_head.size());
      response.body_head.append(reinterpret_cast<const char*>(bytes.data()),
                                std::min(room, bytes.size()));
      return true;
    }
    stopped = begin_body();
    if (stopped.ok() && handlers.on_body) stopped = handlers.on_body(bytes);
    return stopped.ok();
  }
};

template <typename F>
bool without_throwing(Exchange& exchange, const F& call) noexcept {
  try {
    return call();
  } catch (...) {  // memory that runs out
    exchange.threw = true;
    return false;
  }
}

size_t on_header(char* data, size_t size, size_t n, void* exchange) {
  auto& e = *static_cast<Exchange*>(exchange);
  return without_throwing(e, [&] { return e.header({data, size * n}); }) ? size * n : 0;
}

size_t on_body(char* data, size_t size, size_t n, void* exchange) {
  const std::span bytes(reinterpret_cast<const uint8_t*>(data), size * n);
  auto& e = *static_cast<Exchange*>(exchange);
  return without_throwing(e, [&] { return e.body(bytes); }) ? size * n : 0;
}

int on_progress(void* exchange, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  auto& e = *static_cast<Exchange*>(exchange);
  const bool going = without_throwing(e, [&] {
    if (!e.handlers.keep_going || e.handlers.keep_going()) return true;
    e.stopped = Error{ErrorCode::kCancelled, "the download was cancelled"};
    return false;
  });
  return going ? 0 : 1;
}

HttpFault fault_of(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
      return HttpFault::kUnreachable;
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return HttpFault::kInterrupted;
    default:
      return HttpFault::kRefused;
  }
}

Result<List> header_list(const HttpRequest& request, bool with_token) {
  List list;
  std::vector<std::string> lines;
  for (const auto& [name, value] : request.headers) lines.push_back(name + ": " + value);
  if (with_token) lines.push_back("Authorization: Bearer " + request.bearer_token);
  for (const std::string& line : lines) {
    if (line.find_first_of("\r\n") != line.npos) {
      return Error{ErrorCode::kInvalidArgument,
                   "a header's value (a token?) has a line break in it, which is not accepted"};
    }
    if (!append(list, line)) return Error{ErrorCode::kTooLarge, "not enough memory"};
  }
  return list;
}

void set_options(CURL* easy, const HttpRequest& request, const std::string& url,
                 const std::string& host, const std::string_view* body, Exchange& exchange,
                 char* words) {
  const auto set = curl().easy_setopt;
  set(easy, CURLOPT_URL, url.c_str());
  set(easy, CURLOPT_ERRORBUFFER, words);
  set(easy, CURLOPT_NOSIGNAL, 1L);
  set(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  set(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(easy, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  set(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(easy, CURLOPT_LOW_SPEED_TIME, static_cast<long>(request.stall_seconds));
  set(easy, CURLOPT_BUFFERSIZE, kReadBuffer);
  if (request.timeout_ms > 0) set(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout_ms));
  if (body != nullptr) {
    set(easy, CURLOPT_POST, 1L);
    set(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body->size()));
    set(easy, CURLOPT_POSTFIELDS, body->data());
  }
  set(easy, CURLOPT_HEADERFUNCTION, on_header);
  set(easy, CURLOPT_HEADERDATA, &exchange);
  set(easy, CURLOPT_WRITEFUNCTION, on_body);
  set(easy, CURLOPT_WRITEDATA, &exchange);
  set(easy, CURLOPT_NOPROGRESS, 0L);
  set(easy, CURLOPT_XFERINFOFUNCTION, on_progress);
  set(easy, CURLOPT_XFERINFODATA, &exchange);
  // An empty name is "no proxy, whatever the environment says".
  if (is_loopback(host)) set(easy, CURLOPT_PROXY, "");
  const std::string certificates = environment({"CURL_CA_BUNDLE", "SSL_CERT_FILE"});
  if (!certificates.empty()) set(easy, CURLOPT_CAINFO, certificates.c_str());
}

// One hop: a GET, or with `body` a POST. An empty status and kNone when a response came.
HttpOutcome exchange_once(const HttpRequest& request, const HttpHandlers& handlers,
                          const std::string& url, const std::string& host, bool with_token,
                          const std::string_view* body = nullptr) {
  HttpOutcome out;
  const auto refused = [&](Error error) {
    out.fault = HttpFault::kRefused;
    out.status = std::move(error);
    return out;
  };
  auto list = header_list(request, with_token);
  if (!list.ok()) return refused(list.error());
  // Without this a server has a second to say that it will read the body.
  if (body != nullptr && !append(*list, "Expect:")) {
    return refused({ErrorCode::kTooLarge, "not enough memory for a request"});
  }
  const std::unique_ptr<CURL, EasyFree> easy(curl().easy_init());
  if (!easy) return refused({ErrorCode::kTooLarge, "not enough memory for a request"});
  Exchange exchange{handlers, {}, {}};
  char words[CURL_ERROR_SIZE] = {};
  set_options(easy.get(), request, url, host, body, exchange, words);
  curl().easy_setopt(easy.get(), CURLOPT_HTTPHEADER, (*list).get());
  const CURLcode code = curl().easy_perform(easy.get());
  if (exchange.threw) throw std::bad_alloc();  // past libcurl
  // A response without a body ends here.
  if (code == CURLE_OK && is_success(exchange.response.status)) {
    exchange.stopped = exchange.begin_body();
  }
  out.response = std::move(exchange.response);
  out.response.url = url;
  if (!exchange.stopped.ok()) {
    out.fault = HttpFault::kStopped;
    out.status = exchange.stopped;
  } else if (code != CURLE_OK) {
    out.fault = fault_of(code);
    const std::string why = words[0] != '\0' ? words : curl().easy_strerror(code);
    out.status = Error{ErrorCode::kNetwork, fmt::format("{}: {}", url_without_secrets(url), why)};
  }
  return out;
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

bool same_origin(const Url& a, const Url& b) {
  return a.scheme == b.scheme && a.host == b.host && a.port == b.port;
}

}  // namespace

void HttpHeaders::add(std::string_view name, std::string_view value) {
  std::string lower(name);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  while (!value.empty() && (value.back() == ' ' || value.back() == '\t')) value.remove_suffix(1);
  entries_.emplace_back(std::move(lower), std::string(value));
}

std::string HttpHeaders::get(std::string_view name) const {
  for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
    if (it->first == name) return it->second;
  }
  return "";
}

Result<Url> parse_url(const std::string& url) {
  CUTAWAY_ASSIGN(const UrlHandle handle, open_url("", url));
  Url out{part_of(handle.get(), CURLUPART_SCHEME), part_of(handle.get(), CURLUPART_HOST),
          part_of(handle.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT),
          part_of(handle.get(), CURLUPART_PATH)};
  for (char& c : out.host) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (out.scheme != "http" && out.scheme != "https") {
    return bad_url(url, fmt::format("its scheme is '{}'; http and https are accepted", out.scheme));
  }
  if (out.host.empty()) return bad_url(url, "it names no host");
  return out;
}

HttpOutcome http_get(const HttpRequest& request, const HttpHandlers& handlers) {
  HttpHeaders on_the_way;
  const auto refused = [](Error error) {
    return HttpOutcome{HttpFault::kRefused, std::move(error), {}};
  };
  auto first = parse_url(request.url);
  if (!first.ok()) return refused(first.error());
  std::string url = part_of((*open_url("", request.url)).get(), CURLUPART_URL);
  Url here = *first;
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    const bool with_token = !request.bearer_token.empty() && same_origin(*first, here);
    HttpOutcome out = exchange_once(request, handlers, url, here.host, with_token);
    out.response.redirect_headers = on_the_way;
    const std::string location = out.response.headers.get("location");
    if (out.fault != HttpFault::kNone || !is_redirect(out.response.status) || location.empty()) {
      return out;
    }
    for (const char* name : {"x-linked-etag", "x-linked-size", "x-repo-commit"}) {
      const std::string value = out.response.headers.get(name);
      if (!value.empty()) on_the_way.add(name, value);
    }
    const auto bad_target = [&](const Error& error) {
      return refused({ErrorCode::kNetwork, fmt::format("{} redirects to what is no URL: {}",
                                                       url_without_secrets(url), error.message)});
    };
    auto resolved = open_url(url, location);
    if (!resolved.ok()) return bad_target(resolved.error());
    const std::string next = part_of((*resolved).get(), CURLUPART_URL);
    auto there = parse_url(next);
    if (!there.ok()) return bad_target(there.error());
    if (here.scheme == "https" && there->scheme != "https") {
      return refused({ErrorCode::kNetwork,
                      fmt::format("{} redirects to {}, which is not encrypted; not followed",
                                  url_without_secrets(url), url_without_secrets(next))});
    }
    url = next;
    here = *there;
  }
  return refused(
      {ErrorCode::kNetwork, fmt::format("{} redirects more than {} times",
                                        url_without_secrets(request.url), kMaxRedirects)});
}

HttpOutcome http_post(const HttpRequest& request, std::string_view body,
                      const HttpHandlers& handlers) {
  const auto there = parse_url(request.url);
  if (!there.ok()) return HttpOutcome{HttpFault::kRefused, there.error(), {}};
  const std::string url = part_of((*open_url("", request.url)).get(), CURLUPART_URL);
  const bool with_token = !request.bearer_token.empty();
  return exchange_once(request, handlers, url, there->host, with_token, &body);
}

std::string url_without_secrets(const std::string& url) {
  std::string out = url.substr(0, url.find_first_of("?#"));
  const size_t scheme = out.find("://");
  if (scheme == out.npos) return out;
  const size_t host = scheme + 3;
  const size_t path = std::min(out.find('/', host), out.size());
  const size_t at = out.rfind('@', path);
  if (at != out.npos && at >= host) out.erase(host, at + 1 - host);
  return out;
}

std::string url_encode(std::string_view text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || (c == '/' && keep_slashes);
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::string url_decode(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 &&
        digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool is_loopback(const std::string& host) {
  if (host == "localhost" || host.ends_with(".localhost") || host == "[::1]" || host == "::1") {
    return true;
  }
  // 127.0.0.0/8, written as an address: a name such as 127.example.org is none.
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == host.npos;
}

}  // namespace cutaway
