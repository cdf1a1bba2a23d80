// The GGUF reader over any bytes: an error or a file, whose tensors all lie inside the bytes and
// which can be written and read again with the same result.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "formats/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cutaway;
  const std::span<const uint8_t> bytes(data, size);
  const auto file = formats::parse_gguf(bytes, "fuzz.gguf");
  if (!file.ok()) {
    CUTAWAY_CHECK(!file.error().message.empty());
    return 0;
  }
  // Nothing is made of nothing: what the reader holds is bounded by the file's size.
  CUTAWAY_CHECK((*file)->tensors.size() <= size && (*file)->metadata.entries().size() <= size);
  formats::GgufWriter writer;
  for (const auto& [key, value] : (*file)->metadata.entries()) {
    // The writer wants the alignment unsigned, the reader takes any integer.
    const auto* alignment = std::get_if<int64_t>(&value);
    if (key == "general.alignment" && alignment != nullptr) {
      writer.add(key, static_cast<uint64_t>(*alignment));
    } else {
      writer.add(key, value);
    }
  }
  uint64_t sum = 0;
  for (const StoredTensor& tensor : (*file)->tensors) {
    CUTAWAY_CHECK(tensor.offset <= size && tensor.size <= size - tensor.offset);
    const auto stored = bytes.subspan(tensor.offset, tensor.size);
    for (const uint8_t byte : stored) sum += byte;
    CUTAWAY_CHECK((*file)->find_tensor(tensor.name) == &tensor);
    writer.add_tensor(tensor.name, tensor.dtype, tensor.shape, stored);
  }
  CUTAWAY_CHECK(writer.check().ok());
  const std::vector<uint8_t> written = writer.to_bytes();
  const auto again = formats::parse_gguf(written, "written.gguf");
  CUTAWAY_CHECK(again.ok());
  CUTAWAY_CHECK((*again)->tensors.size() == (*file)->tensors.size());
  CUTAWAY_CHECK((*again)->metadata.entries().size() == (*file)->metadata.entries().size());
  for (const StoredTensor& tensor : (*again)->tensors) {
    for (const uint8_t byte : std::span(written).subspan(tensor.offset, tensor.size)) sum -= byte;
  }
  CUTAWAY_CHECK(sum == 0);
  return 0;
}
