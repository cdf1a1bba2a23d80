#include "cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace cutaway::cli {
namespace {

int g_output_error = 0;  // errno of the write to stdout that failed

// False with errno set.
bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

void hold_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free number is `fd`. The wrong direction: EBADF, as when it was closed.
    if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

bool write_out(std::string_view text) {
  if (g_output_error == 0 && !write_all(STDOUT_FILENO, text)) g_output_error = errno;
  return g_output_error == 0;
}

bool output_failed() { return g_output_error != 0; }

bool write_json(const Json& json) {
  return write_out(to_text(json, is_terminal(STDOUT_FILENO) ? 2 : -1) + "\n");
}

int end_output(int status) {
  if (g_output_error == 0) return status;
  print_error(g_output_error == EPIPE ? "cutaway: stdout was closed"
                                      : fmt::format("cutaway: cannot write to stdout: {}",
                                                    std::strerror(g_output_error)));
  return kFailed;
}

void print_error(std::string_view line) { write_all(STDERR_FILENO, printable(line) + "\n"); }

void print_warning(std::string_view line) { print_error("cutaway: warning: " + std::string(line)); }

int report(const Error& error) {
  print_error("cutaway: " + error.message);
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
      return kWrongUsage;
    case ErrorCode::kCancelled:
      return interrupt_status();
    default:
      return kFailed;
  }
}

}  // namespace cutaway::cli
