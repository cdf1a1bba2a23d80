// Interventions: what a run is to change inside itself. Values at any tap are zeroed, scaled, added
// to, replaced, or patched from another run; tokens are forced or banned (docs/interventions.md).
#pragma once

#include <string>

#include "base/json.h"
#include "base/result.h"

namespace cutaway {

struct Interventions {
  Json specification;     // schema/interventions.schema.json
  std::string directory;  // where its relative paths begin; empty: the working directory
};

// A specification from a file, whose folder its relative paths begin at. What it says is checked
// when it is used, against the model. Errors: kNotFound, kIo, kTooLarge (above 256 MiB),
// kInvalidFile (no JSON).
Result<Interventions> read_interventions(const std::string& path);

// The same from a text that is the specification itself; its relative paths begin at the working
// directory. Errors: kInvalidFile (no JSON).
Result<Interventions> parse_interventions(const std::string& text);

}  // namespace cutaway
