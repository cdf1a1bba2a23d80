// Ctrl-C ends a generation, not the program.
#pragma once

namespace cutaway::cli {

// Once, at the start. The first SIGINT is remembered, the next one ends the program as usual.
// SIGPIPE and SIGXFSZ are ignored: writes report what happened. A blocking read returns EINTR.
void handle_signals();

// Whether a SIGINT has come since the start or the last clear_interrupt().
bool interrupted();
void clear_interrupt();

}  // namespace cutaway::cli
