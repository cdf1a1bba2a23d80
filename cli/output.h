// Stdout and stderr. Stdout may be a pipe that closes or a disk that is full: writing stops at the
// first failure, and the program's end reports it.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace cutaway::cli {

// Once, before any file is opened: a standard descriptor that is closed would otherwise be the
// number of the next file, and the answer would be written into a trace. Its writes keep failing.
void hold_standard_descriptors();

// Writes to stdout at once. False once stdout has failed.
bool write_out(std::string_view text);
bool output_failed();
// One JSON document and a newline: indented on a terminal, one line otherwise.
bool write_json(const Json& json);

// What main returns: `status`, or kFailed with one line on stderr when stdout has failed.
int end_output(int status);

// A line on stderr; control characters are escaped.
void print_error(std::string_view line);
void print_warning(std::string_view line);

// "cutaway: MESSAGE" on stderr and the exit status of this kind of error.
int report(const Error& error);

}  // namespace cutaway::cli
