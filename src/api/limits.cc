#include "api/limits.h"

#include <algorithm>

#include "base/clock.h"
#include "base/cpu_features.h"
#include "base/memory_limit.h"
#include "trace/trace.h"

namespace cutaway::api {
namespace {

using Loop = int64_t (*)(int64_t rounds) noexcept;

// The best of short runs: threads take many small pieces, so that they end together.
double measure_loop(Loop loop, ThreadPool& pool, int64_t budget_ns) {
  constexpr int64_t kPieceNs = 100'000;
  constexpr size_t kPieces = 32;  // a thread
  int64_t rounds = 64;
  for (;;) {
    const int64_t start = now_ns();
    loop(rounds);
    const int64_t took = std::max<int64_t>(1, now_ns() - start);
    if (took >= kPieceNs / 2) break;
    rounds *= 2;
  }
  const size_t pieces = kPieces * static_cast<size_t>(pool.size());
  const int64_t ops = loop(rounds) * static_cast<int64_t>(pieces);
  double best = 0;
  const int64_t end = now_ns() + budget_ns;
  do {
    const int64_t start = now_ns();
    pool.parallel_for(pieces, [&](size_t) noexcept { loop(rounds); });
    const auto took = static_cast<double>(std::max<int64_t>(1, now_ns() - start));
    best = std::max(best, static_cast<double>(ops) / took);
  } while (now_ns() < end);
  return best;
}

}  // namespace

void MachineLimits::keep_better(const MachineLimits& other) {
  CUTAWAY_SPAN(span, "api::MachineLimits::keep_better");
  if (other.read.gbps > read.gbps) read = other.read;
  int8_gops = std::max(int8_gops, other.int8_gops);
  f32_gops = std::max(f32_gops, other.f32_gops);
  if (probe == nullptr) probe = other.probe;
  CUTAWAY_OUT(span, "read_gbps", read.gbps, "int8_gops", int8_gops, "f32_gops", f32_gops);
}

Json MachineLimits::to_json() const {
  CUTAWAY_SPAN(span, "api::MachineLimits::to_json", "read_gbps", read.gbps);
  return {{"read_gbps", read.gbps},
          {"read_buffer_bytes", read.buffer_bytes},
          {"read_streams", read.streams},
          {"int8_gops", int8_gops},
          {"int8_instructions", probe->int8_instructions},
          {"f32_gops", f32_gops},
          {"f32_instructions", probe->f32_instructions}};
}

Result<MachineLimits> measure_limits(const kernels::KernelTable& table, ThreadPool& pool,
                                     int64_t budget_ns) {
  CUTAWAY_SPAN(span, "api::measure_limits", "kernels", table.name, "threads", pool.size());
  MachineLimits out;
  out.probe = &kernels::arithmetic_probe(table);
  out.int8_gops = measure_loop(out.probe->int8, pool, budget_ns);
  out.f32_gops = measure_loop(out.probe->f32, pool, budget_ns);
  const size_t buffer =
      bandwidth_buffer_bytes(cpu_features().l3_bytes, available_memory("").available_bytes);
  CUTAWAY_ASSIGN(out.read, measure_read_bandwidth(pool, buffer, budget_ns));
  CUTAWAY_OUT(span, "read_gbps", out.read.gbps, "int8_gops", out.int8_gops, "f32_gops",
              out.f32_gops);
  return out;
}

double TokenCost::limit_gops(const MachineLimits& limits) const {
  CUTAWAY_SPAN(span, "api::TokenCost::limit_gops", "q8_ops", q8_ops, "f32_ops", f32_ops);
  double seconds = 0;
  if (q8_ops > 0) seconds += q8_ops / limits.int8_gops;
  if (f32_ops > 0) seconds += f32_ops / limits.f32_gops;
  const double gops = seconds > 0 ? ops() / seconds : 0;
  CUTAWAY_OUT(span, "gops", gops);
  return gops;
}

CostModel::CostModel(const arch::Products& products, const kernels::KernelTable& table,
                     bool precise, double kv_bytes)
    : kv_bytes_(kv_bytes) {
  const auto add_ops = [&](const kernels::PackedMatrix& matrix, int64_t times, Work& work) {
    const double ops = 2.0 * static_cast<double>(matrix.rows) * static_cast<double>(matrix.cols);
    const bool q8 = !precise && table.matmul_q8[static_cast<size_t>(matrix.layout)] != nullptr;
    (q8 ? work.q8_ops : work.f32_ops) += ops * static_cast<double>(times);
  };
  const auto add = [&](const kernels::PackedMatrix& matrix, Work& work) {
    work.bytes += static_cast<double>(matrix.bytes());
    add_ops(matrix, 1, work);
  };
  for (const kernels::PackedMatrix& matrix : products.layers) add(matrix, layers_);
  add(products.head, head_);
  for (const arch::Products::Experts& experts : products.experts) {
    add_ops(experts.each, experts.used, layers_);
    const auto n = static_cast<double>(experts.n);
    experts_.push_back(
        {static_cast<double>(experts.each.bytes()) * n, static_cast<double>(experts.used) / n});
  }
}

double CostModel::layer_bytes(int64_t n) const {
  CUTAWAY_SPAN(span, "api::CostModel::layer_bytes", "n", n);
  double bytes = layers_.bytes;
  for (const Experts& experts : experts_) {
    // An expert is left out where each of the n positions leaves it out.
    double left_out = 1;
    for (int64_t i = 0; i < n && left_out > 1e-9; ++i) left_out *= 1 - experts.share;
    bytes += experts.bytes * (1 - left_out);
  }
  CUTAWAY_OUT(span, "bytes", bytes);
  return bytes;
}

TokenCost CostModel::prefill(int64_t n, int64_t chunk) const {
  CUTAWAY_SPAN(span, "api::CostModel::prefill", "n", n, "chunk", chunk);
  const auto tokens = static_cast<double>(n);
  double weights = 0, positions = 0;  // bytes; positions whose keys and values a pass reads
  for (int64_t at = 0; at < n; at += chunk) {
    weights += layer_bytes(std::min(chunk, n - at));
    positions += static_cast<double>(std::min(at + chunk, n));
  }
  // The head multiplies the last position alone.
  const TokenCost out{(weights + head_.bytes + positions * kv_bytes_) / tokens,
                      layers_.q8_ops + head_.q8_ops / tokens,
                      layers_.f32_ops + head_.f32_ops / tokens};
  CUTAWAY_OUT(span, "bytes", out.bytes, "ops", out.ops());
  return out;
}

TokenCost CostModel::decode(int64_t n, int64_t batch, int64_t depth) const {
  CUTAWAY_SPAN(span, "api::CostModel::decode", "n", n, "batch", batch, "depth", depth);
  // Step i of 0 … n − 1 reads depth + i + 1 positions, its own among them.
  const double positions = static_cast<double>(depth) + static_cast<double>(n + 1) / 2;
  const TokenCost out{
      (layer_bytes(batch) + head_.bytes) / static_cast<double>(batch) + positions * kv_bytes_,
      layers_.q8_ops + head_.q8_ops, layers_.f32_ops + head_.f32_ops};
  CUTAWAY_OUT(span, "bytes", out.bytes, "ops", out.ops());
  return out;
}

}  // namespace cutaway::api
