// Where records go: console lines, JSONL, Perfetto, OTLP; live.h and otlp_http_sink.h have those
// that drop instead of waiting. File and console sinks apply back-pressure.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "trace/tracer.h"

namespace cutaway::trace {

// One line a record, indented by depth, as API describes:
// HH:MM:SS.mmm [TRACE] phase=prompt > text::Tokenizer::encode IN text="What is 2 + 2?"
// HH:MM:SS.mmm [TRACE] phase=prompt < text::Tokenizer::encode OUT ids=[1780,314,…] n=9 (41 µs)
// `stream` is not closed. Control characters in values are escaped, so that hostile text cannot
// drive a terminal. `colour`: dim the time, bold the name.
std::shared_ptr<Sink> make_console_sink(std::FILE* stream, bool colour);

// One JSON object a line (schema/trace.schema.json). A process that is killed leaves whole lines.
// Error kIo when the file cannot be made.
Result<std::shared_ptr<Sink>> make_jsonl_sink(const std::string& path);

// Chrome's JSON trace format, which Perfetto's UI opens (ui.perfetto.dev): spans as slices of their
// threads, and for each run a track of its phases and tokens and counters of its context and speed.
// Streamed: the file of a run that was killed opens too. Error kIo when the file cannot be made.
Result<std::shared_ptr<Sink>> make_perfetto_sink(const std::string& path);

// OpenTelemetry's OTLP in JSON, one ExportTraceServiceRequest a line, as its file exporter writes
// it: for a collector, with the semantic conventions for generative AI on each run's request. The
// environment's TRACEPARENT makes the caller's span the parent (otlp_settings.h). Error kIo when
// the file cannot be made.
Result<std::shared_ptr<Sink>> make_otlp_sink(const std::string& path);

// The text of one record as the console sink writes it, without newline.
std::string format_line(const Record& record, bool colour);
// The JSON of one record as the JSONL sink writes it, without newline.
std::string format_json(const Record& record);

}  // namespace cutaway::trace
