// Ctrl-C ends a generation, not the program.
#pragma once

namespace cutaway::cli {

// Once, at the start. The first SIGINT is remembered, the next one ends the program as usual.
// SIGPIPE and SIGXFSZ are ignored: writes report what happened. A blocking read returns EINTR.
void handle_signals();

// SIGTERM and SIGHUP from now on count as SIGINT does: for commands that ask often whether to go on
// and have files to remove.
void interrupt_on_termination();

// 128 + the signal that interrupted last (SIGINT when none did): what the program ends with.
int interrupt_status();

// Whether a SIGINT has come since the start or the last clear_interrupt().
bool interrupted();
void clear_interrupt();

}  // namespace cutaway::cli
