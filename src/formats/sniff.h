// Says what bytes are, for files that turn out not to be the model that they were taken for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace cutaway::formats {

enum class FileKind : uint8_t { kGguf, kSafetensors, kOther };

struct Sniffed {
  FileKind kind = FileKind::kOther;
  std::string description;  // completes "this file is …": "a ZIP archive (PyTorch checkpoints are)"
};

// Decides by content alone, never by the file's name.
Sniffed sniff(std::span<const uint8_t> bytes);

// Outside bytes as they may stand in a message: control bytes and quotes escaped, invalid UTF-8
// replaced, at most 80 bytes kept, in double quotes.
std::string in_quotes(std::string_view text);

}  // namespace cutaway::formats
