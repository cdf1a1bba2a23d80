// The reader of importance matrices over any bytes, of either format: an error that names the file,
// or values that are finite and as many as they say, which written and read again are the same.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/check.h"
#include "formats/imatrix.h"

using namespace cutaway;  // NOLINT

namespace {

// Files in memory: the reader takes paths.
class MemoryFile {
 public:
  explicit MemoryFile(const char* name) : fd_(::memfd_create(name, 0)) {
    CUTAWAY_CHECK(fd_ >= 0);
    path_ = "/proc/self/fd/" + std::to_string(fd_);
  }
  void set(const uint8_t* data, size_t size) {
    CUTAWAY_CHECK(::ftruncate(fd_, 0) == 0);
    for (size_t at = 0; at < size;) {
      const ssize_t n = ::pwrite(fd_, data + at, size - at, static_cast<off_t>(at));
      CUTAWAY_CHECK(n > 0);
      at += static_cast<size_t>(n);
    }
  }
  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};

}  // namespace

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
