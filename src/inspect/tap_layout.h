// How a tap's values lie, and which taps a model has.
#pragma once

#include <cstdint>
#include <optional>

#include "arch/architecture.h"
#include "trace/probe.h"
#include "trace/tap_selection.h"

namespace cutaway::inspect {

// One position's values of a tap: `groups` times `width`. Attention maps hold a row of keys for
// each head, whose width is the number of keys.
struct TapLayout {
  enum class Groups : uint8_t { kNone, kQueryHeads, kKvHeads, kExperts };
  int64_t groups = 1, width = 1;
  Groups of = Groups::kNone;  // kNone: one group, which is no dimension of its own
  bool map = false;           // {heads, query, key}; width is 0

  bool heads() const { return of == Groups::kQueryHeads || of == Groups::kKvHeads; }
};

// None where the model does not have the tap.
std::optional<TapLayout> tap_layout(trace::Site site, const arch::ModelShape& shape);

// What there is to choose from.
trace::TapDomain tap_domain(const arch::ModelShape& shape);

}  // namespace cutaway::inspect
