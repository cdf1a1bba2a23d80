#include "model/quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "formats/quantize_search.h"
#include "formats/sniff.h"
#include "kernels/layout.h"
#include "trace/trace.h"

namespace cutaway::model {
namespace {

// The number that readers know the block formats by; it has been 2 since all of them were settled.
constexpr uint32_t kQuantizationVersion = 2;

// One tensor: parts of rows that the pool's threads convert, then hand on.
class Converter {
 public:
  Converter(const PlannedTensor& planned, const ModelFile& file, ThreadPool& pool)
      : planned_(planned),
        source_(*planned.source),
        file_(file),
        pool_(pool),
        columns_(source_.shape[source_.shape.rank() - 1]),
        rows_(source_.shape.elements() / columns_),
        from_bytes_(dtype_bytes(source_.dtype, static_cast<size_t>(columns_))),
        to_bytes_(dtype_bytes(planned.type, static_cast<size_t>(columns_))),
        largest_(formats::largest_value(planned.type)) {}

  // `done(bytes)` is told the source bytes of each part.
  template <typename Sink, typename Done>
  Status run(const Sink& sink, const Done& done) const {
    constexpr int64_t kPartElements = int64_t{2} << 20;
    const int64_t part = std::clamp<int64_t>(kPartElements / columns_, 1, rows_);
    const bool copied = planned_.type == source_.dtype;
    std::vector<uint8_t> from(static_cast<size_t>(part) * from_bytes_);
    std::vector<uint8_t> to(copied ? 0 : static_cast<size_t>(part) * to_bytes_);
    std::vector<float> values(copied ? 0 : static_cast<size_t>(part * columns_));
    for (int64_t begin = 0; begin < rows_; begin += part) {
      const int64_t n = std::min(part, rows_ - begin);
      const auto source = std::span(from).first(static_cast<size_t>(n) * from_bytes_);
      CUTAWAY_TRY(file_.read(source_, static_cast<uint64_t>(begin) * from_bytes_, source));
      if (!copied) CUTAWAY_TRY(convert(begin, n, source.data(), values.data(), to.data()));
      CUTAWAY_TRY(
          sink(copied ? std::span<const uint8_t>(source)
                      : std::span<const uint8_t>(to).first(static_cast<size_t>(n) * to_bytes_)));
      CUTAWAY_TRY(done(source.size()));
    }
    return {};
  }

 private:
  // The n rows from `begin` on, which `from` holds, into `out`. `values`: room for them as floats.
  Status convert(int64_t begin, int64_t n, const uint8_t* from, float* values, uint8_t* out) const {
    constexpr size_t kChunkBytes = size_t{64} << 10;
    const auto step = std::max<int64_t>(1, static_cast<int64_t>(kChunkBytes / from_bytes_));
    std::atomic<int64_t> bad{rows_};
    pool_.parallel_for(static_cast<size_t>((n + step - 1) / step), [&](size_t chunk) noexcept {
      const int64_t first = static_cast<int64_t>(chunk) * step;
      for (int64_t i = first; i < std::min(first + step, n); ++i) {
        const uint8_t* stored = from + static_cast<size_t>(i) * from_bytes_;
        if (row(begin + i, stored, values + i * columns_, out + static_cast<size_t>(i) * to_bytes_))
          continue;
        int64_t lowest = bad.load();
        while (begin + i < lowest && !bad.compare_exchange_weak(lowest, begin + i)) {
        }
        return;
      }
    });
    if (bad.load() == rows_) return {};
    return Error{ErrorCode::kInvalidFile,
                 fmt::format("tensor {} holds a value in row {} that {} cannot hold: not a number, "
                             "or larger than {:g}",
                             formats::in_quotes(source_.name), bad.load(),
                             dtype_name(planned_.type), largest_),
                 source_.name};
  }

  bool row(int64_t index, const uint8_t* stored, float* values, uint8_t* out) const noexcept {
    kernels::dequantize(source_.dtype, stored, columns_, values);
    float most = 0;
    bool number = true;
    for (int64_t i = 0; i < columns_; ++i) {
      const float a = std::fabs(values[i]);
      most = a > most ? a : most;
      number &= a == a;  // NOLINT: false for a NaN
    }
    if (!number || most > largest_) return false;
    const float* importance = nullptr;
    if (planned_.importance != nullptr) {
      const int64_t rows_each = rows_ / planned_.importance->matrices;
      importance = planned_.importance->values.data() + index / rows_each * columns_;
    }
    formats::quantize_row_searched(planned_.type, values, importance, columns_, out);
    return true;
  }

  const PlannedTensor& planned_;
  const StoredTensor& source_;
  const ModelFile& file_;
  ThreadPool& pool_;
  int64_t columns_, rows_;
  size_t from_bytes_, to_bytes_;
  float largest_;
};

void add_metadata(const ModelFile& file, const QuantizationOptions& options,
                  formats::GgufWriter& writer) {
  const auto& entries = file.metadata.entries();
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string& key = entries[i].first;
    if (key == "general.file_type" || key == "general.quantization_version" ||
        key.starts_with("split.") || key.starts_with("quantize.imatrix.")) {
      continue;
    }
    writer.add_from(file, i);
  }
  writer.add_u32("general.file_type", options.recipe.file_type);
  writer.add_u32("general.quantization_version", kQuantizationVersion);
  if (options.importance == nullptr) return;
  writer.add("quantize.imatrix.entries_count",
             static_cast<int64_t>(options.importance->tensors.size()));
  if (!options.importance->datasets.empty()) {
    writer.add("quantize.imatrix.dataset", options.importance->datasets.front());
  }
  writer.add("quantize.imatrix.chunks_count", options.importance->chunks);
}

}  // namespace

void add_quantized(const ModelFile& file, const QuantizationOptions& options,
                   const QuantizationPlan& plan, ThreadPool& pool, const ReportBytes& report,
                   formats::GgufWriter& writer) {
  CUTAWAY_SPAN(span, "model::add_quantized", "file", file.path, "tensors", plan.tensors.size());
  add_metadata(file, options, writer);
  uint64_t total = 0;
  for (const PlannedTensor& planned : plan.tensors) total += planned.source->size;
  const auto done = std::make_shared<uint64_t>(0);
  for (const PlannedTensor& planned : plan.tensors) {
    const auto produce = [&planned, &file, &pool, report, total,
                          done](const formats::GgufWriter::Append& append) -> Status {
      const Converter converter(planned, file, pool);
      return converter.run(append, [&](size_t bytes) -> Status {
        *done += bytes;
        if (!report || report(*done, total)) return {};
        return Error{ErrorCode::kCancelled, "quantising was cancelled"};
      });
    };
    writer.add_tensor(planned.source->name, planned.type, planned.source->shape, produce);
  }
  CUTAWAY_OUT(span, "bytes", total);
}

}  // namespace cutaway::model
