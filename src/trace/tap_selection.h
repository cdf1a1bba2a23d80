// Which taps are wanted, and what of them: sites × layers × heads × positions × steps, from text.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "trace/index_set.h"
#include "trace/probe.h"

namespace cutaway::trace {

// As people write it: names, and sets of indices (index_set.h). An empty text is everything.
//
//   names      tap names and their aliases (parse_tap_name), and patterns of several; each text may
//              hold more than one, with commas between them:
//                all                         every tap that the model has
//                pattern  pattern-3          a site's short name: its last word without "hook_"
//                                            (ln1.scale, ln_final.normalized); of every layer, or
//                                            of one
//                blocks.*.attn.hook_pattern  * stands for any characters
//                blocks.0-3.hook_resid_post  layers 0 to 3
//   layers     0,3-5           of the taps that patterns name
//   heads      0,2             query heads; of keys and values those heads that these read
//   positions  0:16  -4:  7    absolute positions, one range; negative ones count from the end
//   steps      0:4             steps of an answer, one range: step s is the position that chose
//                              token s
struct TapQuery {
  std::vector<std::string> names;
  std::string layers, heads, positions, steps;
};

// What there is to choose from.
struct TapDomain {
  int n_layers = 0, n_heads = 0;
  std::bitset<kSiteCount> sites;   // that the model has
  std::bitset<kSiteCount> hidden;  // of these, those that are meant by their own name alone
};

struct TapRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

struct TapSelection {
  std::vector<TapName> taps;    // each once, in the order of the forward pass
  std::vector<int32_t> layers;  // ascending; empty: all
  std::vector<int32_t> heads;   // likewise
  // Ends unresolved: negative numbers count from an end that is not known yet.
  std::optional<IndexRange> positions, steps;

  // The positions of a text of n tokens. Error kInvalidArgument when the window reaches past it, or
  // holds nothing.
  Result<TapRange> range_of_text(int64_t n) const;
  // Those of a run of n computed positions whose step 0 is at `first_step`, of what is there of the
  // windows: may be empty.
  TapRange range_of_run(int64_t n, int64_t first_step) const;
};

// What fields are called where a query was written.
struct TapFields {
  std::string taps = "taps", layers = "layers";
};

// The taps that names mean, each once, in the order of the forward pass; of what patterns mean, the
// ones of `layers` (empty: all). Errors kInvalidArgument name the field, the text and what there
// is: an unknown name with the nearest one, a name that stands twice or is of another layer.
// kUnsupported: a tap that this model does not have.
Result<std::vector<TapName>> match_taps(const std::vector<std::string>& names,
                                        const IndexSet& layers, const TapDomain& domain,
                                        const TapFields& fields = {});

// Errors: those of match_taps; a layer or head that is not there, a window that is none.
Result<TapSelection> parse_taps(const TapQuery& query, const TapDomain& domain);

}  // namespace cutaway::trace
