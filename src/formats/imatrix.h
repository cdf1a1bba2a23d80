// Importance matrices: how much each input column of a weight counts, measured as the mean square
// of the activations that it met. Reads both of llama.cpp's formats (GGUF, and the older
// binary .dat) and writes the GGUF one; docs/quantize.md describes them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cutaway::formats {

struct Importance {
  int64_t matrices = 1;       // experts that are stacked in the tensor
  std::vector<float> values;  // mean squares, [matrices][columns]; finite, ≥ 0
  std::vector<float> counts;  // tokens that each matrix met, [matrices]; empty: not known
};

struct ImportanceMatrix {
  std::map<std::string, Importance, std::less<>> tensors;  // by the tensor's name
  std::vector<std::string> datasets;                       // what text it was measured on
  int64_t chunks = 0, chunk_size = 0;  // windows, and tokens in each; 0: not known
};

// Errors: kNotFound, kIo; kInvalidFile names what is wrong: another kind of file, an entry without
// its counts, a size that the file cannot hold, a value that is negative or not finite.
Result<ImportanceMatrix> read_importance(const std::string& path);

// A GGUF file with `NAME.in_sum2` and `NAME.counts` for every tensor, as llama.cpp reads it.
// Errors: kInvalidArgument (nothing was measured), kIo (without `replace`, a file that is there).
Status write_importance(const ImportanceMatrix& importance, const std::string& path, bool replace);

}  // namespace cutaway::formats
