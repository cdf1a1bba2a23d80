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
  g_interrupted = 1;
}

}  // namespace

void handle_signals() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;  // without SA_RESTART
  sigemptyset(&action.sa_mask);
  // A shell's background job starts with SIGINT ignored; that choice stays.
  struct sigaction before = {};
  sigaction(SIGINT, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGINT, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

bool interrupted() { return g_interrupted != 0; }
void clear_interrupt() { g_interrupted = 0; }

}  // namespace cutaway::cli
