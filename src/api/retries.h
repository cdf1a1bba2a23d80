// When to ask a server again, and what to say when not.
#pragma once

#include <functional>
#include <string>

#include "api/download.h"
#include "base/http_client.h"

namespace cutaway::api {

class Retries {
 public:
  // `keep_going` is asked several times a second while waiting, with what is waited for. `source`
  // outlives this object.
  using KeepGoing = std::function<bool(const std::string& what)>;
  Retries(const DownloadSource& source, KeepGoing keep_going);

  // After a request that did not bring what was wanted: waits and returns ok when another try makes
  // sense; else the error to report. `gained`: it brought some bytes, so the count begins anew.
  Status after(const HttpOutcome& outcome, bool gained);

 private:
  Status wait(double seconds, const std::string& why);

  const DownloadSource& source_;
  KeepGoing keep_going_;
  int failures_ = 0;  // in a row
  bool ever_reached_ = false;
};

// GET of the source's URL, with its token and this program's name.
HttpRequest plain_request(const DownloadSource& source);

// What a status other than success means, and what would help.
Error status_error(const HttpResponse& response, const DownloadSource& source);

// Seconds that a Retry-After header asks for: a number or an HTTP date; −1 when it says nothing.
double retry_after_seconds(const std::string& header, int64_t now_unix);

}  // namespace cutaway::api
