// The conversation on a terminal.
#pragma once

#include <string>

#include "cutaway/engine.h"
#include "cutaway/model.h"

namespace cutaway::cli {

// Asks, answers, until Ctrl-D or /exit. `request` gives sampling, stop strings and limits of every
// answer. The history of lines is kept in $CUTAWAY_HOME/history. `traced_here`, if any, writes its
// trace to this terminal: each answer follows its trace as a whole. Returns the exit status.
int chat(const Model& model, const SessionOptions& options, const GenerateRequest& request,
         const std::string& system, Engine* traced_here);

}  // namespace cutaway::cli
