// The text files of page/, as the build embeds them.
#pragma once

#include <string_view>

namespace cutaway::api {

extern const std::string_view kPageStyle;   // page.css
extern const std::string_view kPageScript;  // the .js files, in their order

}  // namespace cutaway::api
