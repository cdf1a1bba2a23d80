#include "cli/interrupt.h"

#include <csignal>

namespace cutaway::cli {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void on_interrupt(int signal) {
  if (g_interrupted != 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return;
  }
  g_interrupted = signal;
}

// A signal that was ignored when the program started (a shell's background job, nohup) stays so.
void handle(int signal) {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;  // without SA_RESTART
  sigemptyset(&action.sa_mask);
  struct sigaction before = {};
  sigaction(signal, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
}

}  // namespace

void handle_signals() {
  handle(SIGINT);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void interrupt_on_termination() {
  handle(SIGTERM);
  handle(SIGHUP);
}

int interrupt_status() {
  return 128 + (g_interrupted != 0 ? static_cast<int>(g_interrupted) : SIGINT);
}

bool interrupted() { return g_interrupted != 0; }
void clear_interrupt() { g_interrupted = 0; }

}  // namespace cutaway::cli
