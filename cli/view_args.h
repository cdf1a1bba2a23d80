// What the commands that show a text from inside share: where the text comes from, and where the
// view goes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/common.h"
#include "cutaway/views.h"

namespace cutaway::cli {

struct ViewArgs {
  ModelArgs model;
  EngineArgs engine;
  SessionArgs session;
  TraceArgs trace;
  TextArgs text;
  std::optional<std::string> tokens, output, intervene;
  bool special = false, json = false;

  void add_to(Args& args);  // what is the view's own comes before
  // Flags that contradict each other, and what -o names. Touches no file.
  Status check() const;
  // True for a page: -o names an .html file.
  bool wants_page() const;
};

// The text or the ids of the arguments, and --intervene's file, as a request has them. Nothing:
// there is none. `status` is set when something failed: it has been reported.
struct ViewInput {
  std::optional<std::string> text;
  std::optional<std::vector<int32_t>> tokens;
  std::optional<ViewInterventions> interventions;
  std::optional<int> status;
};
ViewInput read_input(const Args& args, const ViewArgs& view);

// Warnings to stderr; the view to -o (a page or JSON, by its name) or to stdout (JSON with --json,
// else `table`). Returns the exit status.
int write_view(const ViewArgs& view, const std::string& name, const Json& result,
               const std::string& table);

}  // namespace cutaway::cli
