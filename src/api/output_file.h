// A file that a command writes: what may be replaced, and whether there is room.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace cutaway::api {

// Error kInvalidArgument: an empty name; kIo: a symbolic link (which would be replaced), something
// that is no regular file, or a file without `overwrite`.
Status check_output(const std::string& output, bool overwrite);

// Error kIo when its disk has less than `needed` bytes: names both counts. An old file of that name
// stays until the new one is whole, so its room does not count.
Status check_space(const std::string& output, uint64_t needed);

}  // namespace cutaway::api
