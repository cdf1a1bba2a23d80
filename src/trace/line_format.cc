#include "trace/line_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <ctime>

#include "base/clock.h"
#include "base/utf8.h"
#include "trace/sinks.h"
#include "trace/text_buffer.h"

namespace cutaway::trace {
namespace {

constexpr size_t kMaxIndent = 48;  // deeper records keep their order, not their column
constexpr char kHex[] = "0123456789abcdef";

// Shortest text that reads back to the same number.
template <typename Float>
void append_float(TextBuffer& out, Float value) {
  char text[32];
  const auto end = fmt::format_to(text, "{}", value);
  out += std::string_view(text, static_cast<size_t>(end - text));
}

// 10^(i − kPowerOfOne) for every exponent that a float and four digits need.
constexpr int kPowerOfOne = 45;
constexpr auto kPowers = [] {
  std::array<double, 2 * kPowerOfOne + 5> powers{};
  double up = 1, down = 1;
  for (int i = 0; i < kPowerOfOne + 5; ++i, up *= 10) powers[size_t(kPowerOfOne + i)] = up;
  for (int i = 0; i <= kPowerOfOne; ++i, down *= 10) powers[size_t(kPowerOfOne - i)] = 1 / down;
  return powers;
}();
double power_of_10(int exponent) { return kPowers[static_cast<size_t>(kPowerOfOne + exponent)]; }

}  // namespace

// A traced pass has thousands of these a token, and
// the general functions take five times as long: they must be right for any number of digits.
void append_4_digits(TextBuffer& out, float value) {
  if (!std::isfinite(value)) return append_float(out, value);
  if (std::signbit(value)) out += '-';
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0) {
    out += '0';
    return;
  }
  // The decimal exponent: from the binary one it is right or one too small.
  int binary = 0;
  std::frexp(magnitude, &binary);
  int exponent = static_cast<int>(std::floor((binary - 1) * 0.30102999566398120));
  if (magnitude >= power_of_10(exponent + 1)) ++exponent;
  auto digits = static_cast<int>(std::nearbyint(magnitude * power_of_10(3 - exponent)));
  if (digits == 10000) {
    digits = 1000;
    ++exponent;
  }
  char text[4];
  for (int i = 3; i >= 0; --i, digits /= 10) text[i] = static_cast<char>('0' + digits % 10);
  int n = 4;  // trailing zeros are not written
  while (n > 1 && text[n - 1] == '0') --n;
  const auto whole = static_cast<size_t>(exponent + 1);
  if (exponent < -4 || exponent >= 4) {
    out += text[0];
    if (n > 1) {
      out += '.';
      out += std::string_view(text + 1, static_cast<size_t>(n - 1));
    }
    out += exponent < 0 ? "e-" : "e+";
    const int size = std::abs(exponent);
    out += static_cast<char>('0' + size / 10);
    out += static_cast<char>('0' + size % 10);
  } else if (exponent < 0) {
    out += "0.";
    out.repeat(static_cast<size_t>(-exponent - 1), '0');
    out += std::string_view(text, static_cast<size_t>(n));
  } else {
    out += std::string_view(text, whole);
    if (static_cast<size_t>(n) > whole) {
      out += '.';
      out += std::string_view(text + whole, static_cast<size_t>(n) - whole);
    }
  }
}

namespace {

// JSON has no NaN and no infinities: they become strings.
template <typename Float>
void append_json_float(TextBuffer& out, Float value) {
  if (std::isfinite(value)) return append_float(out, value);
  out += std::isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
}

void append_hex(TextBuffer& out, uint64_t value) {
  char text[16];
  for (int i = 0; i < 16; ++i) text[i] = kHex[value >> (60 - 4 * i) & 15];
  out += std::string_view(text, sizeof text);
}

void append_escape(TextBuffer& out, int32_t c) {
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kHex[c >> shift & 15];
}

// Characters above ASCII that could drive a terminal (C1 controls, among them an eight-bit CSI),
// end a line for some readers (U+0085, U+2028, U+2029) or reorder what stands around them.
bool is_hostile(int32_t c) {
  return (c >= 0x80 && c < 0xA0) || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) ||
         c == 0x200E || c == 0x200F || c == 0xFEFF;
}

template <typename T>
void append_list(TextBuffer& out, const T* values, size_t n) {
  out += '[';
  for (size_t i = 0; i < n; ++i) {
    if (i > 0) out += ',';
    out += values[i];
  }
}

// ---- console -----------------------------------------------------------------------------------

void append_console_tensor(TextBuffer& out, const Field::Tensor& t) {
  out += "f32";
  append_list(out, t.dims, t.rank);
  out += ']';
  if (!t.has_digest) return;
  const std::pair<const char*, float> numbers[] = {
      {" min=", t.min}, {" max=", t.max}, {" mean=", t.mean}, {" l2=", t.l2}};
  for (const auto& [key, value] : numbers) {
    out += key;
    append_4_digits(out, value);
  }
  out += " nan=";
  out += t.nan_count;
  out += " [";
  int64_t elements = 1;
  for (size_t i = 0; i < t.rank; ++i) elements *= t.dims[i];
  for (size_t i = 0; i < t.n_first; ++i) {
    if (i > 0) out += ',';
    append_4_digits(out, t.first[i]);
  }
  out += t.n_first < elements ? ",…] xxh3=" : "] xxh3=";
  append_hex(out, t.hash_high);
  append_hex(out, t.hash_low);
}

void append_console_value(TextBuffer& out, const Field& field) {
  switch (field.kind) {
    case FieldKind::kInt:
      out += field.i;
      return;
    case FieldKind::kUnsigned:
      out += field.u;
      return;
    case FieldKind::kFloat:
      out += std::string_view(fmt::format("{:.6g}", field.f));
      return;
    case FieldKind::kBool:
      out += field.b ? "true" : "false";
      return;
    case FieldKind::kText:
      out += '"';
      append_escaped(out, {field.text.bytes, field.text.kept});
      if (field.text.kept < field.text.full_size) {
        out += "…\" (";
        out += field.text.full_size;
        out += " bytes)";
      } else {
        out += '"';
      }
      return;
    case FieldKind::kIds:
      append_list(out, field.ids.first, field.ids.kept);
      out += field.ids.kept < field.ids.count ? ",…]" : "]";
      return;
    case FieldKind::kTensor:
      return append_console_tensor(out, field.tensor);
    case FieldKind::kDigest:
      append_hex(out, field.tensor.hash_high);
      return append_hex(out, field.tensor.hash_low);
  }
}

void append_coordinate(TextBuffer& out, const char* key, int32_t value) {
  if (value < 0) return;
  out += key;
  out += value;
}

void append_duration(TextBuffer& out, int64_t ns) {
  out += " (";
  if (ns <= 10'000'000) {
    out += (ns + 500) / 1000;
    out += " µs)";
  } else {
    const int64_t tenths = (ns + 50'000) / 100'000;
    out += tenths / 10;
    out += '.';
    out += tenths % 10;
    out += " ms)";
  }
}

// ---- JSON --------------------------------------------------------------------------------------

void append_json_tensor(TextBuffer& out, const Field::Tensor& t) {
  out += "{\"dtype\":\"f32\",\"shape\":";
  append_list(out, t.dims, t.rank);
  out += ']';
  if (t.has_digest) {
    const std::pair<const char*, float> numbers[] = {
        {",\"min\":", t.min}, {",\"max\":", t.max}, {",\"mean\":", t.mean}, {",\"l2\":", t.l2}};
    for (const auto& [key, value] : numbers) {
      out += key;
      append_json_float(out, value);
    }
    out += ",\"nan\":";
    out += t.nan_count;
    out += ",\"first\":[";
    for (size_t i = 0; i < t.n_first; ++i) {
      if (i > 0) out += ',';
      append_json_float(out, t.first[i]);
    }
    out += "],\"xxh3\":\"";
    append_hex(out, t.hash_high);
    append_hex(out, t.hash_low);
    out += '"';
  }
  out += '}';
}

void append_json_value(TextBuffer& out, const Field& field) {
  switch (field.kind) {
    case FieldKind::kInt:
      out += field.i;
      return;
    case FieldKind::kUnsigned:
      out += field.u;
      return;
    case FieldKind::kFloat:
      return append_json_float(out, field.f);
    case FieldKind::kBool:
      out += field.b ? "true" : "false";
      return;
    case FieldKind::kText: {
      const bool clipped = field.text.kept < field.text.full_size;
      out += clipped ? "{\"text\":\"" : "\"";
      append_escaped(out, {field.text.bytes, field.text.kept});
      out += '"';
      if (clipped) {
        out += ",\"bytes\":";
        out += field.text.full_size;
        out += '}';
      }
      return;
    }
    case FieldKind::kIds:
      out += "{\"count\":";
      out += field.ids.count;
      out += ",\"first\":";
      append_list(out, field.ids.first, field.ids.kept);
      out += "]}";
      return;
    case FieldKind::kTensor:
      return append_json_tensor(out, field.tensor);
    case FieldKind::kDigest:
      out += "{\"xxh3\":\"";
      append_hex(out, field.tensor.hash_high);
      append_hex(out, field.tensor.hash_low);
      out += "\"}";
      return;
  }
}

constexpr const char* kKindNames[] = {"enter", "exit", "event"};

}  // namespace

void append_us(TextBuffer& out, int64_t ns) {
  out += ns / 1000;
  const auto rest = static_cast<int>(ns % 1000);
  const char text[] = {'.', static_cast<char>('0' + rest / 100),
                       static_cast<char>('0' + rest / 10 % 10), static_cast<char>('0' + rest % 10)};
  out += std::string_view(text, sizeof text);
}

void append_escaped(TextBuffer& out, std::string_view text) {
  size_t plain = 0;  // where the run of characters that stay as they are began
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    size_t length = 1;
    int32_t c = byte;
    if (byte >= 0x80) {
      c = utf8_decode(text, i, length);
      if (c >= 0 && !is_hostile(c)) {
        i += length;
        continue;
      }
    } else if (byte >= 0x20 && byte != '"' && byte != '\\' && byte != 0x7F) {
      ++i;
      continue;
    }
    out += text.substr(plain, i - plain);
    switch (c) {
      case -1:
        out += "\xEF\xBF\xBD";
        break;
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        append_escape(out, c);
    }
    i += length;
    plain = i;
  }
  out += text.substr(plain);
}

void append_json_fields(TextBuffer& out, std::span<const Field> fields) {
  bool first = true;
  for (const Field& field : fields) {
    if (!first) out += ',';
    first = false;
    out += '"';
    out += field.key;
    out += "\":";
    append_json_value(out, field);
  }
}

void LineFormat::append_clock(TextBuffer& out, int64_t wall_us) {
  if (const int64_t ms = wall_us / 1000; ms != clock_ms_) {
    clock_ms_ = ms;
    clock_ = clock_text(wall_us);
  }
  out += clock_;
}

// UTC: "2026-01-31T12:00:00.123456Z".
void LineFormat::append_iso(TextBuffer& out, int64_t wall_us) {
  if (const int64_t second = wall_us / 1'000'000; second != iso_second_) {
    iso_second_ = second;
    const auto time = static_cast<std::time_t>(second);
    std::tm parts{};
    ::gmtime_r(&time, &parts);
    char text[32];
    iso_.assign(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S.", &parts));
  }
  out += iso_;
  char digits[7];
  auto rest = static_cast<uint32_t>(wall_us % 1'000'000);
  for (int i = 5; i >= 0; --i, rest /= 10) digits[i] = static_cast<char>('0' + rest % 10);
  digits[6] = 'Z';
  out += std::string_view(digits, sizeof digits);
}

void LineFormat::append_console(TextBuffer& out, const Record& record, bool colour) {
  if (colour) out += "\x1b[2m";
  append_clock(out, record.wall_us);
  if (colour) out += "\x1b[0m";
  out += " [TRACE] phase=";
  out += phase_name(record.phase);
  out.repeat(1 + std::min<size_t>(2 * size_t{record.depth}, kMaxIndent), ' ');
  out += record.kind == RecordKind::kEnter ? "> " : record.kind == RecordKind::kExit ? "< " : "* ";
  if (colour) out += "\x1b[1m";
  out += record.name;
  if (colour) out += "\x1b[0m";
  if (record.kind == RecordKind::kEnter) out += " IN";
  if (record.kind == RecordKind::kExit) out += " OUT";
  for (const Field& field : record.fields) {
    out += ' ';
    out += field.key;
    out += '=';
    append_console_value(out, field);
  }
  if (record.at.seq > 0) append_coordinate(out, " seq=", record.at.seq);
  append_coordinate(out, " l=", record.at.layer);
  append_coordinate(out, " p=", record.at.position);
  append_coordinate(out, " s=", record.at.step);
  if (record.duration_ns >= 0) append_duration(out, record.duration_ns);
}

void LineFormat::append_json(TextBuffer& out, const Record& record) {
  out += "{\"t_us\":";
  append_us(out, std::max<int64_t>(record.time_ns, 0));
  out += ",\"wall\":\"";
  append_iso(out, record.wall_us);
  out += "\",\"kind\":\"";
  out += kKindNames[static_cast<size_t>(record.kind)];
  out += "\",\"phase\":\"";
  out += phase_name(record.phase);
  out += "\",\"thread\":";
  out += record.thread;
  out += ",\"depth\":";
  out += record.depth;
  out += ",\"name\":\"";
  out += record.name;
  out += '"';
  if (record.at.run >= 0) {
    out += ",\"run\":\"";
    append_escaped(out, record.run);
    out += '"';
  }
  append_coordinate(out, ",\"seq\":", record.at.seq);
  append_coordinate(out, ",\"step\":", record.at.step);
  append_coordinate(out, ",\"position\":", record.at.position);
  append_coordinate(out, ",\"layer\":", record.at.layer);
  out += ",\"fields\":{";
  append_json_fields(out, record.fields);
  out += '}';
  if (record.duration_ns >= 0) {
    out += ",\"duration_us\":";
    append_us(out, record.duration_ns);
  }
  out += '}';
}

void LineFormat::append_console(std::string& out, const Record& record, bool colour) {
  TextBuffer text(out);
  append_console(text, record, colour);
}

void LineFormat::append_json(std::string& out, const Record& record) {
  TextBuffer text(out);
  append_json(text, record);
}

void append_json_fields(std::string& out, std::span<const Field> fields) {
  TextBuffer text(out);
  append_json_fields(text, fields);
}

void append_escaped(std::string& out, std::string_view text) {
  TextBuffer buffer(out);
  append_escaped(buffer, text);
}

void append_us(std::string& out, int64_t ns) {
  TextBuffer text(out);
  append_us(text, ns);
}

void append_4_digits(std::string& out, float value) {
  TextBuffer text(out);
  append_4_digits(text, value);
}

std::string format_line(const Record& record, bool colour) {
  std::string out;
  LineFormat().append_console(out, record, colour);
  return out;
}

std::string format_json(const Record& record) {
  std::string out;
  LineFormat().append_json(out, record);
  return out;
}

}  // namespace cutaway::trace
