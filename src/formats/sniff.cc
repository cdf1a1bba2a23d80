#include "formats/sniff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/utf8.h"
#include "trace/trace.h"

namespace cutaway::formats {
namespace {

bool starts_with(std::span<const uint8_t> bytes, std::string_view prefix) {
  return bytes.size() >= prefix.size() &&
         std::memcmp(bytes.data(), prefix.data(), prefix.size()) == 0;
}

struct Signature {
  std::string_view prefix;
  const char* description;
};

using namespace std::string_view_literals;

// Binary signatures that identify a file by its first bytes.
constexpr Signature kSignatures[] = {
    {"FUGG"sv, "a big-endian GGUF file (only little-endian ones are read)"},
    {"lmgg"sv, "an old GGML file, the format before GGUF; convert it to GGUF"},
    {"fmgg"sv, "an old GGML file (GGMF), the format before GGUF; convert it to GGUF"},
    {"tjgg"sv, "an old GGML file (GGJT), the format before GGUF; convert it to GGUF"},
    {"version https://git-lfs"sv,
     "a Git LFS pointer, not the model itself; get the file with `git lfs pull`"},
    {"PK\x03\x04"sv, "a ZIP archive (PyTorch checkpoints are)"},
    {"PK\x05\x06"sv, "an empty ZIP archive"},
    {"\x1F\x8B"sv, "a gzip archive; unpack it first"},
    {"\x28\xB5\x2F\xFD"sv, "a Zstandard archive; unpack it first"},
    {"\xFD"
     "7zXZ"sv,
     "an xz archive; unpack it first"},
    {"BZh"sv, "a bzip2 archive; unpack it first"},
    {"7z\xBC\xAF\x27\x1C"sv, "a 7-Zip archive; unpack it first"},
    {"\x7F"
     "ELF"sv,
     "a program or library (ELF)"},
    {"%PDF"sv, "a PDF document"},
    {"\x89PNG"sv, "a PNG image"},
    {"\x93NUMPY"sv, "a NumPy array"},
    {"\x89HDF"sv, "an HDF5 file (Keras weights are)"},
    {"\x80\x02"sv, "a Python pickle (old PyTorch checkpoints are)"},
    {"SQLite format 3"sv, "an SQLite database"},
};

bool is_safetensors(std::span<const uint8_t> bytes) {
  if (bytes.size() < 10) return false;
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header >= 2 && header <= bytes.size() - 8 && bytes[8] == '{';
}

// What readable text the file is, or empty when it is not text.
std::string describe_text(std::span<const uint8_t> bytes) {
  const size_t length = std::min<size_t>(bytes.size(), 512);
  std::string head(reinterpret_cast<const char*>(bytes.data()), length);
  head.resize(head.size() - utf8_incomplete_tail(head));
  const auto is_control = [](char c) {
    return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t';
  };
  if (!utf8_valid(head) || std::any_of(head.begin(), head.end(), is_control)) return {};
  const size_t first = head.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "a text file of white space";
  std::string lower = head.substr(first, 16);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (lower.starts_with("<!doctype html") || lower.starts_with("<html")) {
    return "an HTML page (a download link may need a login, or be the page about the file)";
  }
  if (lower.starts_with("<?xml")) return "an XML document";
  if (lower[0] == '{' || lower[0] == '[') return "a JSON text";
  return "a text file that begins with " + in_quotes(head.substr(first, 32));
}

std::string describe_unknown(std::span<const uint8_t> bytes) {
  const auto head = bytes.first(std::min<size_t>(bytes.size(), 4096));
  if (std::all_of(head.begin(), head.end(), [](uint8_t b) { return b == 0; })) {
    return "zeros where the header should be (a download that was not finished?)";
  }
  std::string hex;
  for (const uint8_t b : bytes.first(std::min<size_t>(bytes.size(), 8))) {
    hex += fmt::format("{}{:02x}", hex.empty() ? "" : " ", b);
  }
  return "of an unknown kind (its first bytes are " + hex + ")";
}

}  // namespace

Sniffed sniff(std::span<const uint8_t> bytes) {
  CUTAWAY_SPAN(span, "formats::sniff", "bytes", bytes.size());
  Sniffed found;
  if (starts_with(bytes, "GGUF")) {
    found = {FileKind::kGguf, "a GGUF file"};
  } else if (bytes.empty()) {
    found.description = "empty (0 bytes)";
  } else if (bytes.size() < 4 &&
             starts_with(bytes, std::string_view("GGUF").substr(0, bytes.size()))) {
    found.description = fmt::format("cut short: {} bytes of a GGUF file's first 4", bytes.size());
  } else if (is_safetensors(bytes)) {
    found = {FileKind::kSafetensors, "a safetensors file"};
  } else {
    for (const Signature& signature : kSignatures) {
      if (starts_with(bytes, signature.prefix)) {
        found.description = signature.description;
        break;
      }
    }
    if (found.description.empty() && bytes.size() >= 262 &&
        starts_with(bytes.subspan(257), "ustar")) {
      found.description = "a tar archive; unpack it first";
    }
    if (found.description.empty()) found.description = describe_text(bytes);
    if (found.description.empty()) found.description = describe_unknown(bytes);
  }
  CUTAWAY_OUT(span, "is", found.description);
  return found;
}

std::string in_quotes(std::string_view text) {
  CUTAWAY_SPAN(span, "formats::in_quotes", "text", text);
  constexpr size_t kKept = 80;
  const bool clipped = text.size() > kKept;
  std::string kept(text.substr(0, kKept));
  if (clipped) kept.resize(kept.size() - utf8_incomplete_tail(kept));
  std::string out = "\"";
  for (const char c : utf8_replace_invalid(kept)) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  out += clipped ? "…\"" : "\"";
  CUTAWAY_OUT(span, "out", out);
  return out;
}

}  // namespace cutaway::formats
