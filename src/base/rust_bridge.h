// What Cutaway takes from its Rust library, in C++ terms. The only code that sees its C header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace cutaway {

// For who renders very often, as fuzzers do. The calling thread's stack has `size` bytes below this
// frame: while 512 MB of them are left, templates use it, in place of a thread with such a stack
// for each call. Untrue: a hostile template ends the program.
void declare_deep_stack(size_t size);

// A Jinja2 template as minijinja renders it, in the environment that transformers sets up for chat
// templates. Immutable; may be rendered from several threads.
class RustTemplate {
 public:
  // Error kInvalidFile with the engine's message and line. `source` must be UTF-8.
  static Result<std::unique_ptr<const RustTemplate>> create(std::string_view source);
  ~RustTemplate();
  RustTemplate(const RustTemplate&) = delete;
  RustTemplate& operator=(const RustTemplate&) = delete;

  // `context`: a JSON object, the variables. `wall_us`: what strftime_now shows, in local time
  // (microseconds since the Unix epoch). Error kInvalidArgument: the message that the template
  // raised, an undefined value, the limit on its work (about a second, 512 MB).
  Result<std::string> render(std::string_view context, int64_t wall_us) const;

 private:
  explicit RustTemplate(void* handle) : handle_(handle) {}
  void* handle_;  // cutaway_template*, kept out of this header
};

}  // namespace cutaway
