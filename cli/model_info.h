// What `info` shows of a model, for people.
#pragma once

#include <cstddef>
#include <string>

#include "base/json.h"

namespace cutaway::cli {

// A line for each key; long values are cut to `width` columns (0: to what a page of text has).
std::string key_values(const Json& object, size_t indent, size_t width);

// Of Model::info(). `width`: columns of the terminal, or 0.
std::string model_text(const Json& model, size_t width);

}  // namespace cutaway::cli
