// Views of one text: what each layer would have said (the logit lens), and where each head looked.
// What they return has one form everywhere, given by schema/lens.schema.json and
// schema/attention.schema.json; docs/views.md shows each.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "cutaway/intervention.h"

namespace cutaway {

// What the pass of a view changes inside itself (intervention.h). Tokens that it forces or bans are
// an error: a view chooses none.
struct ViewInterventions {
  Interventions what;
  // How many of the text's tokens are the prompt: what negative positions count from, and where
  // steps begin. None: all.
  std::optional<int64_t> prompt;
};

struct LensRequest {
  // Exactly one of these two:
  std::optional<std::string> text;             // raw
  std::optional<std::vector<int32_t>> tokens;  // ids, taken as they are
  bool parse_special = false;                  // of text
  int64_t top = 5;                             // tokens per layer and position: 0 … 100
  // Layers to read, like "0,3-5,20:", "embedding" or −1 for what enters the first; empty: all, the
  // embedding too.
  std::string layers;
  std::optional<int64_t> last;  // only the last so many positions; those before are context
  std::optional<ViewInterventions> interventions;
  std::function<bool()> cancelled;  // asked between passes; true ends it with kCancelled
};

struct AttentionRequest {
  // Exactly one of these two:
  std::optional<std::string> text;
  std::optional<std::vector<int32_t>> tokens;
  bool parse_special = false;
  std::string layers, heads;  // which, like "0,3-5,20:"; empty: all
  int64_t top = 3;            // keys per query: 0 … 100
  // The matrices too: 4/3 · n · (n + 1) bytes of base64 a head for n tokens.
  bool patterns = true;
  // Of all matrices together, as base64; beyond it is an error that says what would fit.
  int64_t most_pattern_bytes = int64_t{256} << 20;
  std::optional<ViewInterventions> interventions;
  std::function<bool()> cancelled;
};

// A view as one HTML file that needs nothing else: no network, no other file. `data` is what
// Model::lens ("lens"), Model::attention ("attention") or report() ("report") gave. Errors:
// kInvalidArgument (another name), kTooLarge (above 1 GiB).
Result<std::string> html_page(const std::string& view, const Json& data);

}  // namespace cutaway
