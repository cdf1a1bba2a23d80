// A fuzzer whose thread has the stack that templates want, so that none is made for each of them.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "base/rust_bridge.h"

// Where the system allows no such stack, templates get theirs as they do in production.
inline void take_deep_stack(char** arguments) {
  constexpr rlim_t kStack = rlim_t{640} << 20, kTaken = rlim_t{32} << 20;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0) return;
  if (limit.rlim_cur >= kStack) return cutaway::declare_deep_stack(kStack - kTaken);
  if (limit.rlim_max < kStack) return;
  limit.rlim_cur = kStack;
  // The system leaves room for a stack when a program begins.
  std::string self(4096, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", self.data(), self.size() - 1);
  if (length < 0 || ::setrlimit(RLIMIT_STACK, &limit) != 0) return;
  self.resize(static_cast<size_t>(length));
  ::execv(self.c_str(), arguments);
}
