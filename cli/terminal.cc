#include "cli/terminal.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include <clocale>
#include <cstdlib>
#include <cstring>

#include "base/utf8.h"

namespace cutaway::cli {
namespace {

// C0 and C1 controls, line separators, and the characters that change the direction of text.
bool drives_terminal(int32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || c == 0x200e ||
         c == 0x200f || (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

std::string escape(int32_t c) {
  switch (c) {
    case '\n':
      return "\\n";
    case '\t':
      return "\\t";
    case '\r':
      return "\\r";
    default:
      return c < 0x80 ? fmt::format("\\x{:02x}", c) : fmt::format("\\u{{{:04x}}}", c);
  }
}

std::string escaped(std::string_view text, bool keep_lines, bool quotes) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    size_t length = 1;
    const int32_t c = utf8_decode(text, pos, length);
    if (c < 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[pos]));
    } else if (keep_lines && (c == '\n' || c == '\t')) {
      out += static_cast<char>(c);
    } else if (drives_terminal(c)) {
      out += escape(c);
    } else {
      if (quotes && (c == '"' || c == '\\')) out += '\\';
      out += text.substr(pos, length);
    }
    pos += length;
  }
  return out;
}

size_t columns(int32_t c) {
  const int width = c < 0 ? 1 : ::wcwidth(static_cast<wchar_t>(c));
  return width < 0 ? 1 : static_cast<size_t>(width);
}

}  // namespace

void set_utf8_locale() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(::nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

bool is_terminal(int fd) { return ::isatty(fd) == 1; }

int terminal_width(int fd) {
  winsize size;
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

bool shows_colour(int fd) {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return is_terminal(fd) && (no_colour == nullptr || *no_colour == '\0') &&
         (term == nullptr || std::strcmp(term, "dumb") != 0);
}

std::string printable(std::string_view text) { return escaped(text, false, false); }
std::string printable_lines(std::string_view text) { return escaped(text, true, false); }
std::string in_quotes(std::string_view text) { return '"' + escaped(text, false, true) + '"'; }

size_t display_width(std::string_view text) {
  size_t width = 0, length = 1;
  for (size_t pos = 0; pos < text.size(); pos += length) {
    width += columns(utf8_decode(text, pos, length));
  }
  return width;
}

std::string fit(std::string_view text, size_t width) {
  const size_t full = display_width(text);
  if (full <= width) return std::string(text) + std::string(width - full, ' ');
  if (width == 0) return "";
  size_t used = 0, pos = 0, length = 1;
  for (; pos < text.size(); pos += length) {
    const size_t next = columns(utf8_decode(text, pos, length));
    if (used + next > width - 1) break;
    used += next;
  }
  return std::string(text.substr(0, pos)) + "…" + std::string(width - 1 - used, ' ');
}

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < std::size(units)) {
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, units[unit]);
}

}  // namespace cutaway::cli
