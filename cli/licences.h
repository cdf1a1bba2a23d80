// Third-party notices, embedded at build time: tools/licenses.json, and what cargo says of crates.
#pragma once

#include <string_view>

namespace cutaway::cli {

// {"components":[{"name","licence","copyright",…}], …}, as tools/licenses.json has it.
std::string_view licence_components();

// One crate a line: name, version, licence and authors, with tabs between them.
std::string_view licence_crates();

}  // namespace cutaway::cli
