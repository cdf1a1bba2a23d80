// What a run is to change inside itself, as schema/interventions.schema.json has it, checked
// against the model: taps whose values are changed, and tokens that are forced or banned.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arch/architecture.h"
#include "inspect/tap_layout.h"
#include "sampling/token_rules.h"
#include "text/tokenizer/tokenizer.h"
#include "trace/index_set.h"
#include "trace/probe.h"

namespace cutaway::inspect {

enum class EditOp : uint8_t { kZero, kScale, kAdd, kReplace, kPatch };
// What an item may be called to do, in the order of EditOp.
inline constexpr const char* kEditOpNames[] = {"zero", "scale", "add", "replace", "patch"};
inline const char* edit_op_name(EditOp op) { return kEditOpNames[static_cast<int>(op)]; }

// Where a patch takes its values from.
struct PatchOrigin {
  std::string file;  // a .safetensors file; or
  std::string run;   // a recording's folder
  std::string
      tensor;  // of the file, or the tap of the run; empty: named as the tap that is patched
  trace::IndexSet positions;  // of the source; all: the same as those that are patched
};

// One tap of one item.
struct TapEdit {
  size_t item = 0;  // its index in "interventions"
  trace::TapName tap{};
  TapLayout layout;
  EditOp op = EditOp::kZero;
  std::vector<int64_t> groups;    // the chosen heads, or all groups
  std::vector<int64_t> features;  // the chosen of `width`; empty: all
  // For each chosen group a number, or one for each chosen feature. With an origin: one number, by
  // which its values are multiplied.
  std::vector<float> values;
  bool value_each = false;
  trace::IndexSet positions, steps, keys;
  std::optional<PatchOrigin> from;
  Json source;  // the item as it was written

  // "interventions[2].heads"
  std::string field(const char* member) const {
    return "interventions[" + std::to_string(item) + "]." + member;
  }
};

struct ForcedTokens {
  int64_t step = 0;
  std::vector<int32_t> ids;  // at step, step + 1, …
};

struct InterventionSpec {
  std::vector<TapEdit> edits;  // items in order, each with its taps in order
  std::vector<ForcedTokens> force;
  std::vector<sampling::TokenRules::Ban> ban;
  size_t items = 0;

  sampling::TokenRules rules() const;
};

// Errors kInvalidArgument and kUnsupported name the item, the field, the value and what would do.
Result<InterventionSpec> parse_interventions(const Json& json, const arch::ModelShape& shape,
                                             const text::Tokenizer& tokenizer);

// {"force":[{"step","id"}…],"ban":[{"ids","steps"}…]}: the rules with every text as its ids.
Json token_rules_json(const InterventionSpec& spec);

}  // namespace cutaway::inspect
