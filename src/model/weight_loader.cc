#include "model/weight_loader.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>

#include "base/check.h"
#include "kernels/layout.h"
#include "trace/trace.h"

namespace cutaway::model {
namespace {

constexpr size_t kAlignment = 64;

std::string with_layer(std::string_view name, int64_t layer) {
  std::string out(name);
  if (const size_t at = out.find("{l}"); at != std::string::npos) {
    out.replace(at, 3, std::to_string(layer));
  }
  return out;
}

// Packed row r of a head's rows takes the stored row that this names (see Transform::kRopePairs).
std::vector<int32_t> rope_pair_order(int64_t rows, int64_t heads) {
  const int64_t d = rows / heads;
  std::vector<int32_t> order(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t head = r / d, s = r % d / (d / 2), j = r % d % (d / 2);
    order[static_cast<size_t>(r)] = static_cast<int32_t>(head * d + 2 * j + s);
  }
  return order;
}

bool is_plain_float(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

}  // namespace

Result<const StoredTensor*> WeightLoader::find(const arch::TensorRow& row, int64_t layer,
                                               const Shape& shape) {
  const std::string name = with_layer(row.gguf, layer);
  const StoredTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr) {
    if (row.optional) return static_cast<const StoredTensor*>(nullptr);
    return Error{ErrorCode::kInvalidFile,
                 "tensor " + name + " is missing (expected shape " + shape.text() + ")", name};
  }
  if (!(tensor->shape == shape)) {
    return Error{
        ErrorCode::kInvalidFile,
        "tensor " + name + " has shape " + tensor->shape.text() + ", expected " + shape.text(),
        name};
  }
  used_.insert(name);
  parameters_ += static_cast<uint64_t>(shape.elements());
  return tensor;
}

Result<uint8_t*> WeightLoader::allocate(size_t bytes, const std::string& what) {
  std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes + kAlignment]);
  if (memory == nullptr) {
    return Error{ErrorCode::kTooLarge,
                 "no memory for " + std::to_string(bytes) + " bytes of " + what, what};
  }
  const auto address = reinterpret_cast<uintptr_t>(memory.get());
  auto* data =
      reinterpret_cast<uint8_t*>(memory.get()) + (kAlignment - address % kAlignment) % kAlignment;
  memory_.push_back(std::move(memory));
  spans_.emplace_back(data, bytes);
  return data;
}

Result<int64_t> WeightLoader::rows_of(const arch::TensorRow& row) {
  CUTAWAY_SPAN(span, "model::WeightLoader::rows_of", "tensor", row.gguf);
  const StoredTensor* tensor = file_.find_tensor(row.gguf);
  const std::string name(row.gguf);
  if (tensor == nullptr) {
    return Error{ErrorCode::kInvalidFile, "tensor " + name + " is missing", name};
  }
  if (tensor->shape.rank() != 2 || tensor->shape[0] > (int64_t{1} << 30)) {
    return Error{ErrorCode::kInvalidFile,
                 "tensor " + name + " has shape " + tensor->shape.text() +
                     ", expected two dimensions, the first at most 2^30",
                 name};
  }
  CUTAWAY_OUT(span, "rows", tensor->shape[0]);
  return tensor->shape[0];
}

Result<ops::Matrix> WeightLoader::matrix(const arch::TensorRow& row, int64_t layer, int64_t rows,
                                         int64_t cols, int64_t heads) {
  CUTAWAY_SPAN(span, "model::WeightLoader::matrix", "tensor", row.gguf, "layer", layer, "rows",
               rows, "cols", cols);
  CUTAWAY_ASSIGN(const StoredTensor* tensor, find(row, layer, Shape{rows, cols}));
  ops::Matrix out;
  if (tensor == nullptr) {
    CUTAWAY_OUT(span, "present", false);
    return out;
  }
  if (tensor->dtype == DType::kI32) {
    return Error{ErrorCode::kInvalidFile, "tensor " + tensor->name + " is I32, expected a weight",
                 tensor->name};
  }
  if (row.transform == arch::Transform::kRopePairs && rows / heads % 2 != 0) {
    return Error{
        ErrorCode::kInvalidFile,
        "tensor " + tensor->name + " has heads of an odd size " + std::to_string(rows / heads),
        tensor->name};
  }
  out.packed.layout = kernels::layout_for(tensor->dtype);
  out.packed.rows = rows;
  out.packed.cols = cols;
  CUTAWAY_ASSIGN(uint8_t* const data, allocate(out.packed.bytes(), tensor->name));
  out.packed.data = data;
  Job job{tensor, rows, cols, {}, data};
  if (row.transform == arch::Transform::kRopePairs) job.row_order = rope_pair_order(rows, heads);
  jobs_.push_back(std::move(job));
  CUTAWAY_OUT(span, "dtype", dtype_name(tensor->dtype), "layout",
              kernels::layout_name(out.packed.layout), "bytes", out.packed.bytes());
  return out;
}

Result<ops::Vector> WeightLoader::vector(const arch::TensorRow& row, int64_t layer, int64_t n,
                                         int64_t heads) {
  CUTAWAY_SPAN(span, "model::WeightLoader::vector", "tensor", row.gguf, "layer", layer, "n", n);
  CUTAWAY_ASSIGN(const StoredTensor* tensor, find(row, layer, Shape{n}));
  if (tensor == nullptr) {
    CUTAWAY_OUT(span, "present", false);
    return ops::Vector{};
  }
  if (!is_plain_float(tensor->dtype)) {
    return Error{ErrorCode::kInvalidFile,
                 "tensor " + tensor->name + " is " + dtype_name(tensor->dtype) +
                     ", expected F32, F16 or BF16",
                 tensor->name};
  }
  CUTAWAY_ASSIGN(uint8_t* const data,
                 allocate(static_cast<size_t>(n) * sizeof(float), tensor->name));
  auto* values = reinterpret_cast<float*>(data);
  kernels::dequantize(tensor->dtype, tensor->bytes.data(), n, values);
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(values[i])) {
      return Error{ErrorCode::kInvalidFile,
                   "tensor " + tensor->name + " is not finite at element " + std::to_string(i),
                   tensor->name};
    }
  }
  if (row.transform == arch::Transform::kRopePairs) {
    const std::vector<float> stored(values, values + n);
    const std::vector<int32_t> order = rope_pair_order(n, heads);
    for (size_t i = 0; i < order.size(); ++i) values[i] = stored[static_cast<size_t>(order[i])];
  }
  CUTAWAY_OUT(span, "dtype", dtype_name(tensor->dtype));
  return ops::Vector{values, n};
}

Status WeightLoader::check_all_used() const {
  CUTAWAY_SPAN(span, "model::WeightLoader::check_all_used", "tensors", file_.tensors.size());
  std::string unused;
  size_t count = 0;
  for (const StoredTensor& tensor : file_.tensors) {
    if (used_.contains(tensor.name)) continue;
    if (++count <= 3) unused += (unused.empty() ? "" : ", ") + tensor.name;
  }
  if (count > 0) {
    return Error{ErrorCode::kUnsupported,
                 "the file holds " + std::to_string(count) +
                     " tensors that this architecture does not use: " + unused +
                     (count > 3 ? ", …" : "") + "; leaving them out would change the answers",
                 unused};
  }
  CUTAWAY_OUT(span, "used", used_.size());
  return {};
}

Status WeightLoader::pack_job(const Job& job, ThreadPool& pool) {
  CUTAWAY_SPAN(span, "model::WeightLoader::pack_job", "tensor", job.tensor->name, "dtype",
               dtype_name(job.tensor->dtype), "rows", job.rows, "cols", job.cols);
  const int64_t groups = (job.rows + kernels::kGroupRows - 1) / kernels::kGroupRows;
  constexpr int64_t kGroupsPerChunk = 16;
  std::atomic<int64_t> bad_row{-1};
  pool.parallel_for(static_cast<size_t>((groups + kGroupsPerChunk - 1) / kGroupsPerChunk),
                    [&](size_t chunk) noexcept {
                      const int64_t begin = static_cast<int64_t>(chunk) * kGroupsPerChunk;
                      const int64_t end = std::min(begin + kGroupsPerChunk, groups);
                      const int64_t bad =
                          kernels::pack_groups(job.tensor->bytes, job.tensor->dtype, job.rows,
                                               job.cols, job.row_order, begin, end, job.out);
                      // The lowest, so that the message does not depend on the threads.
                      int64_t lowest = bad_row.load(std::memory_order_relaxed);
                      while (bad >= 0 && (lowest < 0 || bad < lowest) &&
                             !bad_row.compare_exchange_weak(lowest, bad)) {
                      }
                    });
  if (const int64_t bad = bad_row.load(); bad >= 0) {
    return Error{ErrorCode::kInvalidFile,
                 "tensor " + job.tensor->name + " holds a value that is not finite (NaN or " +
                     "infinity) in row " + std::to_string(bad),
                 job.tensor->name};
  }
  return {};
}

Status WeightLoader::pack(ThreadPool& pool,
                          const std::function<bool(uint64_t, uint64_t)>& progress) {
  CUTAWAY_SPAN(span, "model::WeightLoader::pack", "matrices", jobs_.size());
  uint64_t total = 0, done = 0;
  for (const Job& job : jobs_) total += job.tensor->bytes.size();
  for (const Job& job : jobs_) {
    CUTAWAY_TRY(pack_job(job, pool));
    done += job.tensor->bytes.size();
    // The packed copy is what is read from now on: peak memory stays near one copy.
    for (const MappedFile& mapping : file_.mappings) {
      const auto bytes = mapping.bytes();
      if (job.tensor->bytes.data() < bytes.data() ||
          job.tensor->bytes.data() >= bytes.data() + bytes.size()) {
        continue;
      }
      mapping.drop_pages(static_cast<size_t>(job.tensor->bytes.data() - bytes.data()),
                         job.tensor->bytes.size());
    }
    if (progress && !progress(done, total)) {
      return Error{ErrorCode::kCancelled, "loading was cancelled"};
    }
  }
  CUTAWAY_OUT(span, "bytes", total);
  return {};
}

}  // namespace cutaway::model
