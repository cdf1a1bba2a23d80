#include "model/weight_loader.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/guard.h"
#include "kernels/layout.h"
#include "trace/trace.h"

namespace cutaway::model {
namespace {

std::string with_number(std::string_view name, std::string_view mark, int64_t number) {
  std::string out(name);
  if (const size_t at = out.find(mark); at != std::string::npos) {
    out.replace(at, mark.size(), std::to_string(number));
  }
  return out;
}

std::string with_layer(std::string_view name, int64_t layer) {
  return with_number(name, "{l}", layer);
}

std::string with_expert(std::string_view name, int64_t layer, int64_t expert) {
  return with_number(with_layer(name, layer), "{e}", expert);
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

// One piece of memory for each thread that packs, to read parts of the file into.
class Rooms {
 public:
  Rooms(int count, size_t bytes) : bytes_(bytes) {
    for (int i = 0; i < count; ++i) free_.push_back(std::make_unique<uint8_t[]>(bytes));
  }
  class Lease {
   public:
    explicit Lease(Rooms& rooms) : rooms_(rooms) {
      const std::scoped_lock lock(rooms_.mutex_);
      CUTAWAY_CHECK(!rooms_.free_.empty());
      memory_ = std::move(rooms_.free_.back());
      rooms_.free_.pop_back();
    }
    ~Lease() {
      const std::scoped_lock lock(rooms_.mutex_);
      rooms_.free_.push_back(std::move(memory_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    std::span<uint8_t> bytes() const { return {memory_.get(), rooms_.bytes_}; }

   private:
    Rooms& rooms_;
    std::unique_ptr<uint8_t[]> memory_;
  };

 private:
  const size_t bytes_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<uint8_t[]>> free_;
};

// Memory is asked for in pieces that hold a small model whole.
constexpr uint64_t kLargestChunk = uint64_t{256} << 20;

}  // namespace

WeightLoader::WeightLoader(const ModelFile& file)
    : file_(file), memory_(std::min(file.total_bytes(), kLargestChunk)) {}

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
  if (used_.insert(name).second) parameters_ += static_cast<uint64_t>(shape.elements());
  return tensor;
}

Result<uint8_t*> WeightLoader::allocate(size_t bytes, const std::string& what) {
  uint8_t* data = memory_.take(bytes);
  if (data == nullptr) {
    return Error{ErrorCode::kTooLarge,
                 "no memory for " + std::to_string(bytes) + " bytes of " + what, what};
  }
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
  CUTAWAY_ASSIGN(const StoredTensor* tensor,
                 find(row, layer, Shape{row.of > 0 ? row.of : rows, cols}));
  ops::Matrix out;
  if (tensor == nullptr) {
    CUTAWAY_OUT(span, "present", false);
    return out;
  }
  const std::optional<kernels::Layout> layout = kernels::layout_of(tensor->dtype);
  if (!layout) {
    const bool weight = tensor->dtype != DType::kI32;
    return Error{weight ? ErrorCode::kUnsupported : ErrorCode::kInvalidFile,
                 "tensor " + tensor->name + " is " + dtype_name(tensor->dtype) +
                     (weight ? ", which has no products yet" : ", expected a weight"),
                 tensor->name};
  }
  if (row.transform == arch::Transform::kRopePairs && rows / heads % 2 != 0) {
    return Error{
        ErrorCode::kInvalidFile,
        "tensor " + tensor->name + " has heads of an odd size " + std::to_string(rows / heads),
        tensor->name};
  }
  out.packed.layout = *layout;
  out.packed.rows = rows;
  out.packed.cols = cols;
  CUTAWAY_ASSIGN(uint8_t* const data, allocate(out.packed.bytes(), tensor->name));
  out.packed.data = data;
  const size_t row_bytes = dtype_bytes(tensor->dtype, static_cast<size_t>(cols));
  Job job{tensor,
          static_cast<size_t>(row.first) * row_bytes,
          static_cast<size_t>(rows) * row_bytes,
          -1,
          rows,
          cols,
          {},
          data};
  if (row.transform == arch::Transform::kRopePairs) job.row_order = rope_pair_order(rows, heads);
  jobs_.push_back(std::move(job));
  CUTAWAY_OUT(span, "dtype", dtype_name(tensor->dtype), "layout",
              kernels::layout_name(out.packed.layout), "bytes", out.packed.bytes());
  return out;
}

Result<ops::Vector> WeightLoader::vector(const arch::TensorRow& row, int64_t layer, int64_t n,
                                         int64_t heads) {
  CUTAWAY_SPAN(span, "model::WeightLoader::vector", "tensor", row.gguf, "layer", layer, "n", n);
  CUTAWAY_ASSIGN(const StoredTensor* tensor, find(row, layer, Shape{row.of > 0 ? row.of : n}));
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
  CUTAWAY_ASSIGN(const std::vector<uint8_t> stored_bytes, file_.bytes_of(*tensor));
  const size_t skipped = dtype_bytes(tensor->dtype, static_cast<size_t>(row.first));
  kernels::dequantize(tensor->dtype, stored_bytes.data() + skipped, n, values);
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

// Where each expert's {rows, cols} lie in the file.
Result<std::vector<WeightLoader::ExpertBytes>> WeightLoader::find_experts(
    const arch::ExpertRow& row, int64_t layer, int64_t n, int64_t rows, int64_t cols) {
  CUTAWAY_SPAN(span, "model::WeightLoader::find_experts", "tensor", row.gguf, "layer", layer);
  std::vector<ExpertBytes> out;
  const std::string first = with_expert(row.gguf_each, layer, 0);
  if (!row.gguf_each.empty() && file_.find_tensor(first) != nullptr) {
    for (int64_t e = 0; e < n; ++e) {
      const std::string name = with_expert(row.gguf_each, layer, e);
      CUTAWAY_ASSIGN(const StoredTensor* tensor, find({name, ""}, layer, Shape{rows, cols}));
      if (e > 0 && tensor->dtype != out.front().tensor->dtype) {
        return Error{ErrorCode::kInvalidFile,
                     "tensor " + tensor->name + " is " + dtype_name(tensor->dtype) + ", but " +
                         first + " is " + dtype_name(out.front().tensor->dtype) +
                         ": experts of one layer must have one type",
                     tensor->name};
      }
      out.push_back({tensor, 0, tensor->size, false});
    }
    CUTAWAY_OUT(span, "form", "one an expert");
    return out;
  }
  const std::string fused_name = with_layer(row.gguf_fused, layer);
  const bool fused = !row.gguf_fused.empty() && file_.find_tensor(fused_name) != nullptr;
  const int64_t stored_rows = fused ? 2 * rows : rows;
  CUTAWAY_ASSIGN(const StoredTensor* tensor,
                 find({fused ? fused_name : row.gguf, ""}, layer, Shape{n, stored_rows, cols}));
  const size_t matrix_bytes = dtype_bytes(tensor->dtype, static_cast<size_t>(rows * cols));
  for (int64_t e = 0; e < n; ++e) {
    const auto index = static_cast<size_t>(fused ? 2 * e + row.fused_half : e);
    out.push_back({tensor, index * matrix_bytes, matrix_bytes, true});
  }
  CUTAWAY_OUT(span, "form", fused ? "stacked, fused" : "stacked");
  return out;
}

Result<ops::ExpertMatrices> WeightLoader::experts(const arch::ExpertRow& row, int64_t layer,
                                                  int64_t n, int64_t rows, int64_t cols) {
  CUTAWAY_SPAN(span, "model::WeightLoader::experts", "tensor", row.gguf, "layer", layer, "experts",
               n, "rows", rows, "cols", cols);
  CUTAWAY_ASSIGN(const std::vector<ExpertBytes> found, find_experts(row, layer, n, rows, cols));
  const StoredTensor& tensor = *found.front().tensor;
  if (tensor.dtype == DType::kI32) {
    return Error{ErrorCode::kInvalidFile, "tensor " + tensor.name + " is I32, expected a weight",
                 tensor.name};
  }
  ops::ExpertMatrices out;
  out.n = n;
  out.first.layout = kernels::layout_for(tensor.dtype);
  out.first.rows = rows;
  out.first.cols = cols;
  constexpr size_t kAlignment = 64;  // of a packed matrix
  out.stride = (out.first.bytes() + kAlignment - 1) / kAlignment * kAlignment;
  CUTAWAY_ASSIGN(uint8_t* const data, allocate(static_cast<size_t>(n) * out.stride, tensor.name));
  out.first.data = data;
  for (int64_t e = 0; e < n; ++e) {
    const ExpertBytes& from = found[static_cast<size_t>(e)];
    jobs_.push_back({from.tensor,
                     from.begin,
                     from.size,
                     from.stacked ? e : -1,
                     rows,
                     cols,
                     {},
                     data + static_cast<size_t>(e) * out.stride});
  }
  CUTAWAY_OUT(span, "dtype", dtype_name(tensor.dtype), "layout",
              kernels::layout_name(out.first.layout), "bytes", static_cast<size_t>(n) * out.stride);
  return out;
}

std::vector<std::pair<const uint8_t*, MatrixSource>> WeightLoader::sources() const {
  CUTAWAY_SPAN(span, "model::WeightLoader::sources", "matrices", jobs_.size());
  std::vector<std::pair<const uint8_t*, MatrixSource>> out;
  for (const Job& job : jobs_) out.push_back({job.out, {job.tensor, job.expert}});
  return out;
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

// Parts of about kPartBytes, which stay in a processor's second-level cache between being read and
// being packed, in the order in which the architecture asked for the tensors.
std::vector<WeightLoader::Part> WeightLoader::divide() const {
  CUTAWAY_SPAN(span, "model::WeightLoader::divide", "matrices", jobs_.size());
  constexpr int64_t kPartBytes = int64_t{512} << 10;
  std::vector<Part> parts;
  for (size_t i = 0; i < jobs_.size(); ++i) {
    const Job& job = jobs_[i];
    const int64_t groups = (job.rows + kernels::kGroupRows - 1) / kernels::kGroupRows;
    const int64_t bytes = static_cast<int64_t>(job.size);
    const int64_t step = std::max<int64_t>(1, groups * kPartBytes / std::max<int64_t>(1, bytes));
    for (int64_t g = 0; g < groups; g += step) {
      Part part{i, g, std::min(g + step, groups), g * kernels::kGroupRows, 0};
      part.end_row = std::min(part.group_end * kernels::kGroupRows, job.rows);
      if (!job.row_order.empty()) {
        const auto [low, high] = std::minmax_element(job.row_order.begin() + part.first_row,
                                                     job.row_order.begin() + part.end_row);
        part.first_row = *low;
        part.end_row = *high + 1;
      }
      parts.push_back(part);
    }
  }
  CUTAWAY_OUT(span, "parts", parts.size());
  return parts;
}

size_t WeightLoader::read_bytes(const Part& part) const {
  const Job& job = jobs_[part.job];
  return job.size / static_cast<size_t>(job.rows) *
         static_cast<size_t>(part.end_row - part.first_row);
}

Status WeightLoader::pack_part(const Part& part, std::span<uint8_t> room) const {
  const Job& job = jobs_[part.job];
  const auto stored = room.first(read_bytes(part));
  const size_t row_bytes = job.size / static_cast<size_t>(job.rows);
  const uint64_t begin = job.begin + static_cast<uint64_t>(part.first_row) * row_bytes;
  CUTAWAY_TRY(file_.read(*job.tensor, begin, stored));
  const int64_t bad =
      kernels::pack_groups(stored, job.tensor->dtype, job.rows, job.cols, job.row_order,
                           part.group_begin, part.group_end, job.out, part.first_row);
  if (bad < 0) return {};
  std::string where = std::to_string(bad);
  if (job.expert >= 0) where += " of expert " + std::to_string(job.expert);
  return Error{ErrorCode::kInvalidFile,
               "tensor " + job.tensor->name +
                   " holds a value that is not finite (NaN or infinity) in row " + where,
               job.tensor->name};
}

Status WeightLoader::pack(ThreadPool& pool, const std::function<bool(uint64_t, uint64_t)>& progress,
                          const std::function<Status()>& beside) {
  CUTAWAY_SPAN(span, "model::WeightLoader::pack", "matrices", jobs_.size());
  uint64_t total = 0;
  for (const Job& job : jobs_) total += job.size;
  const std::vector<Part> parts = divide();
  std::vector<Status> packed(parts.size());
  Status beside_status;
  size_t largest = 0;
  for (const Part& part : parts) largest = std::max(largest, read_bytes(part));
  Rooms rooms(pool.size(), largest);
  const std::thread::id caller = std::this_thread::get_id();
  const trace::Context context = trace::t_context;
  std::atomic<uint64_t> done{0};
  std::atomic<bool> cancelled{false};
  // `beside` comes first: it cannot be divided, so it must not be what is waited for in the end.
  pool.parallel_for(parts.size() + 1, [&](size_t chunk) noexcept {
    if (cancelled.load(std::memory_order_relaxed)) return;
    if (chunk == 0) {
      const trace::Inherit inherit(context);
      if (beside) beside_status = guarded("the tokenizer", beside);
      return;
    }
    const Part& part = parts[chunk - 1];
    const Job& job = jobs_[part.job];
    const Rooms::Lease room(rooms);
    packed[chunk - 1] = guarded("the weights", [&] { return pack_part(part, room.bytes()); });
    const auto groups = static_cast<uint64_t>(part.group_end - part.group_begin);
    const uint64_t all_groups = static_cast<uint64_t>(job.rows + kernels::kGroupRows - 1) /
                                static_cast<uint64_t>(kernels::kGroupRows);
    const uint64_t share = job.size * groups / all_groups;
    const uint64_t now = done.fetch_add(share, std::memory_order_relaxed) + share;
    if (progress && std::this_thread::get_id() == caller && !progress(now, total)) {
      cancelled.store(true, std::memory_order_relaxed);
    }
  });
  CUTAWAY_TRY(beside_status);
  if (cancelled.load() || (progress && !progress(total, total))) {
    return Error{ErrorCode::kCancelled, "loading was cancelled"};
  }
  for (Status& status : packed) CUTAWAY_TRY(status);
  CUTAWAY_OUT(span, "bytes", total);
  return {};
}

}  // namespace cutaway::model
