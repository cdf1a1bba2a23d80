// Where the files of the oracles are: ${CUTAWAY_HOME:-~/.cache/cutaway}/peers.
#pragma once

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace cutaway {

inline std::filesystem::path peers_folder() {
  const char* home = std::getenv("CUTAWAY_HOME");
  const char* user = std::getenv("HOME");
  const std::filesystem::path base =
      home ? std::filesystem::path(home)
           : std::filesystem::path(user ? user : "/") / ".cache/cutaway";
  return base / "peers";
}

// GoogleTest allows letters, digits and _ in the name of a case.
inline std::string test_name(std::string name) {
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

}  // namespace cutaway
