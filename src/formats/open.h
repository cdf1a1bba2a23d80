// One door for every model format.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "tensor/model_file.h"

namespace cutaway::formats {

// Opens a model by path, whatever its format. A folder or a file of an unknown kind gives an error
// that says what was found (e.g. "a Git LFS pointer, not the model itself", "a ZIP archive").
Result<std::shared_ptr<const ModelFile>> open_model_file(const std::string& path);

}  // namespace cutaway::formats
