// The one JSON type: keys keep their order, numbers their kind.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace cutaway {

using Json = nlohmann::ordered_json;

// One line (indent < 0) or indented JSON. Bytes that are not UTF-8 become U+FFFD: a token can end
// inside a character. U+2028, U+2029 and U+0085 are escaped, so that a line stays a line.
std::string to_text(const Json& json, int indent = -1);

// Error kInvalidArgument names the byte at fault. Nesting deeper than 512 is refused.
Result<Json> parse_json(std::string_view text);
// The same of what people write: a key that stands twice in one object is refused, and named.
Result<Json> parse_written_json(std::string_view text);

}  // namespace cutaway
