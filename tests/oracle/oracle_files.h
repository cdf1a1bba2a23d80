// Where the files of the oracles are: ${CUTAWAY_HOME:-~/.cache/cutaway}/peers; and how their texts
// are read.
#pragma once

#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace cutaway {

inline std::filesystem::path peers_folder() {
  const char* home = std::getenv("CUTAWAY_HOME");
  const char* user = std::getenv("HOME");
  const std::filesystem::path base =
      home ? std::filesystem::path(home)
           : std::filesystem::path(user ? user : "/") / ".cache/cutaway";
  return base / "peers";
}

// CUTAWAY_TOKENIZER_ORACLE names another folder of such files.
inline std::filesystem::path tokenizer_oracle_folder() {
  const char* other = std::getenv("CUTAWAY_TOKENIZER_ORACLE");
  return other ? std::filesystem::path(other) : peers_folder() / "oracle/tok";
}

inline std::string from_base64(const std::string& text) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int n = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) break;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if ((n += 6) >= 8) out += static_cast<char>(bits >> (n -= 8));
  }
  return out;
}

// GoogleTest allows letters, digits and _ in the name of a case.
inline std::string test_name(std::string name) {
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

}  // namespace cutaway
