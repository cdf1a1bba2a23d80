// Where exceptions of the standard library end: behind this, everything is a Result.
#pragma once

#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/result.h"

namespace cutaway {

// Error kTooLarge, "there is not enough memory for `what`".
Error out_of_memory(const char* what);
// Error kIo, "cannot start a thread for `what`: …".
Error no_thread(const char* what, const std::system_error& error);

// body()'s Result; or, when memory or threads run out meanwhile, the errors above. `what` completes
// their sentence ("loading the model"). Other exceptions, a callback's own, pass.
template <typename Body>
auto guarded(const char* what, Body&& body) -> decltype(body()) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    return out_of_memory(what);
  } catch (const std::length_error&) {  // a container that could never be that large
    return out_of_memory(what);
  } catch (const std::system_error& error) {
    return no_thread(what, error);
  }
}

}  // namespace cutaway
