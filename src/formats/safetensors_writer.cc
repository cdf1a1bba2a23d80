#include "formats/safetensors_writer.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "base/json.h"
#include "trace/trace.h"

namespace cutaway::formats {
Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::string& path, const std::vector<Tensor>& tensors,
    const std::map<std::string, std::string>& metadata) {
  CUTAWAY_SPAN(span, "formats::SafetensorsWriter::create", "path", path, "tensors", tensors.size());
  CUTAWAY_ASSIGN(WholeFile file, WholeFile::create(path));
  SafetensorsWriter out(std::move(file));
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    const int64_t bytes = tensor.elements() * static_cast<int64_t>(sizeof(float));
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {at, at + bytes}}};
    out.offsets_.push_back(at);
    at += bytes;
  }
  std::string text = to_text(header);
  text.append((8 - text.size() % 8) % 8, ' ');  // data begins aligned
  const auto length = static_cast<uint64_t>(text.size());
  CUTAWAY_TRY(out.file_.append(&length, sizeof length));
  CUTAWAY_TRY(out.file_.append(text.data(), text.size()));
  out.data_begin_ = static_cast<int64_t>(sizeof length + text.size());
  out.data_bytes_ = at;
  CUTAWAY_TRY(out.file_.extend(out.data_begin_ + at));
  CUTAWAY_OUT(span, "bytes", out.data_begin_ + at);
  return out;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : file_(std::move(other.file_)),
      data_begin_(other.data_begin_),
      data_bytes_(other.data_bytes_),
      mapped_(std::exchange(other.mapped_, nullptr)),
      offsets_(std::move(other.offsets_)),
      status_(std::move(other.status_)) {}

SafetensorsWriter::~SafetensorsWriter() {
  if (mapped_ != nullptr) ::munmap(mapped_, static_cast<size_t>(data_begin_ + data_bytes_));
}

Result<float*> SafetensorsWriter::map() {
  CUTAWAY_SPAN(span, "formats::SafetensorsWriter::map", "bytes", data_bytes_);
  const int64_t size = data_begin_ + data_bytes_;
  // A page that the disk has no room for would end the program when it is written.
  if (const int failed = ::posix_fallocate(file_.descriptor(), 0, size); failed != 0) {
    errno = failed;
    return file_.failed();
  }
  void* mapped = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED,
                        file_.descriptor(), 0);
  if (mapped == MAP_FAILED) return file_.failed();
  mapped_ = static_cast<uint8_t*>(mapped);
  CUTAWAY_OUT(span, "begin", data_begin_);
  return reinterpret_cast<float*>(mapped_ + data_begin_);
}

void SafetensorsWriter::write(size_t index, int64_t element, std::span<const float> values) {
  CUTAWAY_SPAN(span, "formats::SafetensorsWriter::write", "tensor", index, "element", element, "n",
               values.size());
  if (!status_.ok()) return;
  status_ =
      file_.write_at(values.data(), values.size_bytes(),
                     data_begin_ + offsets_[index] + element * static_cast<int64_t>(sizeof(float)));
  CUTAWAY_OUT(span, "ok", status_.ok());
}

Status SafetensorsWriter::commit(Durability durability) {
  CUTAWAY_SPAN(span, "formats::SafetensorsWriter::commit", "bytes", data_begin_ + data_bytes_);
  if (mapped_ != nullptr) {
    ::munmap(std::exchange(mapped_, nullptr), static_cast<size_t>(data_begin_ + data_bytes_));
  }
  if (!status_.ok()) return status_;
  CUTAWAY_TRY(file_.publish(WholeFile::Existing::kReplaced, durability));
  CUTAWAY_OUT(span, "done", true);
  return {};
}

}  // namespace cutaway::formats
