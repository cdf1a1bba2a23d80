// What the machine can do at most, measured: what bench holds its figures against.
#pragma once

#include <cstdint>
#include <vector>

#include "arch/architecture.h"
#include "base/bandwidth.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "kernels/probe.h"
#include "kernels/table.h"

namespace cutaway::api {

struct MachineLimits {
  ReadBandwidth read;
  double int8_gops = 0, f32_gops = 0;  // 1e9 operations a second, two per multiply-add, all threads
  const kernels::ArithmeticProbe* probe = nullptr;

  // Keeps the higher of each: what disturbs a measurement makes it lower.
  void keep_better(const MachineLimits& other);
  // {"read_gbps","read_buffer_bytes","read_streams","int8_gops","int8_instructions","f32_gops",
  // "f32_instructions"}
  Json to_json() const;
};

// With all threads of the pool and the instructions of the table; each of the three limits for
// about `budget_ns`. Error kTooLarge: no memory for the buffer that is read.
Result<MachineLimits> measure_limits(const kernels::KernelTable& table, ThreadPool& pool,
                                     int64_t budget_ns);

// What one token of a test costs, on average.
struct TokenCost {
  double bytes = 0;                // read from memory: packed weights, keys and values
  double q8_ops = 0, f32_ops = 0;  // of the products with weights, two per multiply-add

  double ops() const { return q8_ops + f32_ops; }
  // The rate, in 1e9 operations a second, at which these would be done were arithmetic the only
  // limit; 0 when there are none.
  double limit_gops(const MachineLimits& limits) const;
};

// The work of passes over a model's weights. A pass reads each matrix once, however many positions
// it covers; the embedding table only where the head is that table (one row a token is left out).
// Of a mixture's experts it reads those that any of its positions is sent to: as many as are to be
// expected where routers choose evenly, and each position on its own.
class CostModel {
 public:
  // `kv_bytes`: keys and values of one position, all layers.
  CostModel(const arch::Products& products, const kernels::KernelTable& table, bool precise,
            double kv_bytes);

  // A prompt of n ≥ 1 tokens in an empty context, in passes of `chunk`; logits of the last one.
  TokenCost prefill(int64_t n, int64_t chunk) const;
  // n ≥ 1 steps of `batch` sequences that hold `depth` positions each when the first step begins.
  TokenCost decode(int64_t n, int64_t batch, int64_t depth) const;

 private:
  struct Work {
    double bytes = 0, q8_ops = 0, f32_ops = 0;
  };
  struct Experts {
    double bytes = 0;  // of all of them
    double share = 0;  // of them that a token meets
  };
  // Of the layers, for a pass of n positions.
  double layer_bytes(int64_t n) const;

  Work layers_, head_;  // operations of a token; bytes of what every token reads
  std::vector<Experts> experts_;
  double kv_bytes_;
};

}  // namespace cutaway::api
