// What the terminal is and can show.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cutaway::cli {

// Once, at the start: character widths and line editing need a UTF-8 locale, whatever LANG says.
void set_utf8_locale();

bool is_terminal(int fd);
// Columns; 80 when not known.
int terminal_width(int fd);
// A terminal that shows colour, and NO_COLOR is not set.
bool shows_colour(int fd);

// Text that is safe to show: control characters (newline and tab too), characters that reorder
// what follows, and bytes that are no UTF-8 appear as \n, \t, \xNN or \u{NNNN}.
std::string printable(std::string_view text);
// The same in double quotes, with " and \ escaped.
std::string in_quotes(std::string_view text);
// For answers on a terminal: like printable, but newlines and tabs stay.
std::string printable_lines(std::string_view text);

// Columns that a text takes (Hangul and emoji take two).
size_t display_width(std::string_view text);
// Spaces added on the right, or the end cut with "…", to make `width` columns.
std::string fit(std::string_view text, size_t width);

// "98.4 MB", "512 B".
std::string human_bytes(double bytes);

}  // namespace cutaway::cli
