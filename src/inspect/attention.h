// Where each head looked: attention patterns of one text, with what is worth knowing of each query.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "inference/runner.h"

namespace cutaway::inspect {

struct AttentionPlan {
  std::span<const int32_t> tokens;
  // Ascending, without repetition; every one of `layers` × `heads`.
  std::vector<int> layers, heads;
  int32_t top = 3;                  // keys per query, ≥ 0
  bool patterns = true;             // keep the matrices
  int64_t chunk = 512;              // tokens per forward pass
  std::function<bool()> cancelled;  // asked between passes; may be empty
};

struct HeadAttention {
  int layer = 0, head = 0;
  std::vector<float> entropy;     // [q], nats
  std::vector<int32_t> keys;      // [q][top], by weight, then position; −1 where there are fewer
  std::vector<float> weights;     // [q][top]
  std::vector<uint16_t> pattern;  // IEEE half: row q has the weights of keys 0 … q
};

struct AttentionOutcome {
  std::vector<HeadAttention> heads;  // layer by layer
  int64_t forward_ns = 0;
};

// Bytes of one head's `pattern` for a text of n tokens.
constexpr int64_t pattern_bytes(int64_t n) { return n * (n + 1); }

// Preconditions: tokens is not empty; layers and heads are the model's. Errors: those of
// Runner::step, kCancelled.
Result<AttentionOutcome> attention(inference::Runner& runner, kv::PagePool& pages, ThreadPool& pool,
                                   const AttentionPlan& plan);

}  // namespace cutaway::inspect
