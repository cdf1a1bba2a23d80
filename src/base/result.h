// Result<T>: a value or an Error. Everything that a file, a request or a user can cause is reported
// through it; the libraries never print, abort or exit.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace cutaway {

// What kind of failure this is: doors (CLI, HTTP, Python) map it to an exit status, an HTTP status
// or an exception type.
enum class ErrorCode {
  kInvalidArgument,  // a value that the caller gave cannot be honoured
  kInvalidFile,      // bytes of a file are not what the format allows
  kUnsupported,      // well-formed, but outside what this build can do
  kNotFound,         // a file, model, tensor or name that is not there
  kIo,               // the system refused (errno text is in the message)
  kTooLarge,         // does not fit: context, memory, a documented limit
  kCancelled,        // the user or the client went away
  kNetwork,          // a download failed
};

// Short stable name, e.g. "invalid_argument".
const char* error_code_name(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInvalidArgument;
  // One sentence for people: names the field, the value and what would be accepted.
  std::string message;
  // The parameter, metadata key or tensor at fault, when there is one.
  std::string field = {};

  // The same error with `where` put in front of its message ("loading x.gguf: …").
  Error within(const std::string& where) const { return {code, where + ": " + message, field}; }
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // Precondition: ok().
  T& value() & {
    CUTAWAY_CHECK(ok());
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    CUTAWAY_CHECK(ok());
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    CUTAWAY_CHECK(ok());
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Precondition: !ok().
  const Error& error() const {
    CUTAWAY_CHECK(!ok());
    return *std::get_if<1>(&state_);
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    CUTAWAY_CHECK(!ok());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace cutaway

#define CUTAWAY_CONCAT_INNER(a, b) a##b
#define CUTAWAY_CONCAT(a, b) CUTAWAY_CONCAT_INNER(a, b)

// CUTAWAY_TRY(expr): returns expr's error from the enclosing function, if it has one.
#define CUTAWAY_TRY(expr)                                     \
  do {                                                        \
    if (auto cutaway_status = (expr); !cutaway_status.ok()) { \
      return cutaway_status.error();                          \
    }                                                         \
  } while (false)

// CUTAWAY_ASSIGN(auto x, expr): binds expr's value, or returns its error.
#define CUTAWAY_ASSIGN(decl, expr) \
  CUTAWAY_ASSIGN_IMPL(CUTAWAY_CONCAT(cutaway_result_, __LINE__), decl, expr)
#define CUTAWAY_ASSIGN_IMPL(tmp, decl, expr) \
  auto tmp = (expr);                         \
  if (!tmp.ok()) return tmp.error();         \
  decl = std::move(tmp).value()
