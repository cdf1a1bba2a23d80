// Gives an architecture its weights from a ModelFile: checks them, then packs all of them in
// parallel, beside other work of loading.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "arch/architecture.h"
#include "base/large_memory.h"
#include "base/thread_pool.h"

namespace cutaway::model {

// The tensor that a packed matrix is of, or is a part of.
struct MatrixSource {
  const StoredTensor* tensor = nullptr;
  int64_t expert = -1;  // −1: the tensor is no stack of experts
};

class WeightLoader final : public arch::WeightSource {
 public:
  // `file` outlives the loader.
  explicit WeightLoader(const ModelFile& file);

  // Matrices get their memory here and their contents in pack(); vectors are converted at once.
  Result<ops::Matrix> matrix(const arch::TensorRow& row, int64_t layer, int64_t rows, int64_t cols,
                             int64_t heads) override;
  Result<ops::Vector> vector(const arch::TensorRow& row, int64_t layer, int64_t n,
                             int64_t heads) override;
  Result<ops::ExpertMatrices> experts(const arch::ExpertRow& row, int64_t layer, int64_t n,
                                      int64_t rows, int64_t cols) override;
  Result<int64_t> rows_of(const arch::TensorRow& row) override;

  // Error kInvalidFile names tensors of the file that nobody asked for.
  Status check_all_used() const;

  // Fills every matrix, and does `beside` (may be empty) on one of the threads meanwhile. Errors:
  // that of `beside` before any other; kIo when the file cannot be read; kInvalidFile names a
  // tensor and row whose values are not finite; kCancelled when progress(done, total) returned
  // false. `progress` is asked on the calling thread.
  Status pack(ThreadPool& pool, const std::function<bool(uint64_t, uint64_t)>& progress,
              const std::function<Status()>& beside);

  // The memory that the weights live in, and its parts that are weights: what the model keeps.
  LargeArena take_memory() { return std::move(memory_); }
  const std::vector<std::pair<const uint8_t*, size_t>>& spans() const { return spans_; }
  uint64_t parameters() const { return parameters_; }
  // What the packed matrices were made of.
  std::vector<std::pair<const uint8_t*, MatrixSource>> sources() const;

 private:
  struct Job {
    const StoredTensor* tensor;
    uint64_t begin, size;  // of its bytes: all, or one expert's
    int64_t expert;        // −1: the tensor is no stack of experts
    int64_t rows, cols;
    std::vector<int32_t> row_order;
    uint8_t* out;
  };
  // Consecutive groups of a job, and the stored rows that they are made of.
  struct Part {
    size_t job;
    int64_t group_begin, group_end;
    int64_t first_row, end_row;
  };

  // One expert's part of the file.
  struct ExpertBytes {
    const StoredTensor* tensor;
    uint64_t begin, size;  // in the tensor
    bool stacked;
  };
  Result<std::vector<ExpertBytes>> find_experts(const arch::ExpertRow& row, int64_t layer,
                                                int64_t n, int64_t rows, int64_t cols);
  // Null without error: an optional tensor that is not there.
  Result<const StoredTensor*> find(const arch::TensorRow& row, int64_t layer, const Shape& shape);
  Result<uint8_t*> allocate(size_t bytes, const std::string& what);
  std::vector<Part> divide() const;
  size_t read_bytes(const Part& part) const;
  // Reads a part of the file into `room` and packs it. Errors: InputFile::read's; kInvalidFile
  // names the first packed row that is not finite.
  Status pack_part(const Part& part, std::span<uint8_t> room) const;

  const ModelFile& file_;
  std::set<std::string> used_;
  std::vector<Job> jobs_;
  LargeArena memory_;
  std::vector<std::pair<const uint8_t*, size_t>> spans_;
  uint64_t parameters_ = 0;
};

}  // namespace cutaway::model
