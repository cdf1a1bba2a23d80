// Which functions a program enters, and which of them open a span themselves. Only in the check
// build (preset trace-coverage), whose compiler calls this at every entry and exit of a function;
// tools/trace_coverage.py runs it and judges.
#pragma once

namespace cutaway::trace::coverage {

// Called by a span that writes its enter record: the innermost instrumented function opened it.
void span_opened() noexcept;

}  // namespace cutaway::trace::coverage
