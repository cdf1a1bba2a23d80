// The text of a record, appended to a buffer that a sink keeps.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "trace/tracer.h"

namespace cutaway::trace {

class TextBuffer;

// Remembers the last times that it wrote: records come many to a millisecond.
class LineFormat {
 public:
  // As the console sink writes it, without newline (sinks.h).
  void append_console(std::string& out, const Record& record, bool colour);
  // As the JSONL sink writes it, without newline (schema/trace.schema.json).
  void append_json(std::string& out, const Record& record);

 private:
  void append_console(TextBuffer& out, const Record& record, bool colour);
  void append_json(TextBuffer& out, const Record& record);
  void append_clock(TextBuffer& out, int64_t wall_us);
  void append_iso(TextBuffer& out, int64_t wall_us);

  int64_t clock_ms_ = INT64_MIN;
  std::string clock_;
  int64_t iso_second_ = INT64_MIN;
  std::string iso_;
};

// `"key":value` for each field, separated by commas.
void append_json_fields(std::string& out, std::span<const Field> fields);
void append_json_fields(TextBuffer& out, std::span<const Field> fields);
// Between quotes: a valid JSON string in valid UTF-8; characters that drive a terminal, end a line
// or turn writing around are escaped.
void append_escaped(std::string& out, std::string_view text);
void append_escaped(TextBuffer& out, std::string_view text);
// Thousandths, from nanoseconds: "41.204".
void append_us(std::string& out, int64_t ns);
void append_us(TextBuffer& out, int64_t ns);

// Four significant digits, as "%.4g" writes them.
void append_4_digits(std::string& out, float value);
void append_4_digits(TextBuffer& out, float value);

}  // namespace cutaway::trace
