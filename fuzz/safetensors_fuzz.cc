// The safetensors reader over any bytes: an error that names the file, or tensors that lie inside
// it, whose values can be read and are those of the bytes.
//
// Input: with an odd first byte, the file is what follows; else a header, a byte 0 and the data, of
// which a file with the header's right length is made.
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/check.h"
#include "formats/safetensors_reader.h"
#include "fuzz/memory_file.h"

namespace {

std::string file_of(std::string_view input) {
  if (input[0] % 2 != 0) return std::string(input.substr(1));
  input.remove_prefix(1);
  const size_t end = std::min(input.find('\0'), input.size());
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(uint64_t{end} >> (8 * i));
  out += input.substr(0, end);
  out += input.substr(std::min(end + 1, input.size()));
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cutaway;  // NOLINT
  static MemoryFile memory("safetensors");
  if (size == 0) return 0;
  const std::string bytes = file_of({reinterpret_cast<const char*>(data), size});
  memory.set(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  const auto file = formats::SafetensorsFile::open(memory.path());
  if (!file.ok()) {
    CUTAWAY_CHECK(file.error().code == ErrorCode::kInvalidFile);
    CUTAWAY_CHECK(file.error().message.find(memory.path()) != std::string::npos);
    return 0;
  }
  for (const auto& tensor : file->tensors()) {
    CUTAWAY_CHECK(tensor.begin <= bytes.size() && tensor.bytes <= bytes.size() - tensor.begin);
    const auto found = file->find(tensor.name);
    CUTAWAY_CHECK(found.ok() && found->begin == tensor.begin && found->shape == tensor.shape);
    const auto values = file->read(tensor);
    if (!values.ok()) {
      CUTAWAY_CHECK(values.error().code == ErrorCode::kUnsupported);
      continue;
    }
    CUTAWAY_CHECK(static_cast<int64_t>(values->size()) == tensor.elements());
    for (size_t i = 0; i < values->size() && tensor.dtype == "F32"; ++i) {
      CUTAWAY_CHECK(std::memcmp(&(*values)[i], bytes.data() + tensor.begin + 4 * i, 4) == 0);
    }
    for (size_t i = 0; i < values->size() && tensor.dtype == "BF16"; ++i) {
      uint16_t stored = 0;
      std::memcpy(&stored, bytes.data() + tensor.begin + 2 * i, 2);
      CUTAWAY_CHECK(std::bit_cast<uint32_t>((*values)[i]) == uint32_t{stored} << 16);
    }
  }
  CUTAWAY_CHECK(!file->find("no tensor of this name").ok() || !file->tensors().empty());
  return 0;
}
