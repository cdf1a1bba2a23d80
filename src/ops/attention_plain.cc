// Attention step by step, for editors to change scores, patterns and what each head writes: every
// number exists by itself here, which the fused forms never store. Written to be read; sums in
// double, so that it differs from them by their rounding alone.

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/math.h"
#include "ops/attention.h"
#include "ops/attention_maps.h"
#include "trace/trace.h"

namespace cutaway::ops {
namespace {

using trace::Site;

constexpr float kUnseen = -std::numeric_limits<float>::infinity();
constexpr int64_t kMostFloats = int64_t{1} << 24;  // of one block of maps or results

bool sees(const AttentionShape& shape, int64_t position, int64_t key) noexcept {
  return key <= position && (shape.window == 0 || position - key < shape.window);
}

// Some rows of one slice, and all keys that exist for them: keys and values {n_kv_heads, n_keys,
// d_head} as the cache gives them back, maps {n_heads, n, n_keys}.
struct Block {
  const AttentionShape& shape;
  const Slice& slice;
  int64_t begin, n;  // rows of the slice
  int64_t n_keys;
  const float* keys;
  const float* values;
  float* maps;

  int64_t position(int64_t row) const { return slice.first_position + begin + row; }
  int64_t row_of_batch(int64_t row) const { return slice.first_row + begin + row; }
  float* map(int64_t head, int64_t row) const { return maps + (head * n + row) * n_keys; }
  const float* key(int64_t head, int64_t k) const {
    return keys + (head / shape.group() * n_keys + k) * shape.d_head;
  }
  const float* value(int64_t head, int64_t k) const {
    return values + (head / shape.group() * n_keys + k) * shape.d_head;
  }
  // What an editor wrote for keys that a query does not see.
  void mask(float unseen) const noexcept {
    for (int64_t head = 0; head < shape.n_heads; ++head) {
      for (int64_t row = 0; row < n; ++row) {
        for (int64_t k = 0; k < n_keys; ++k) {
          if (!sees(shape, position(row), k)) map(head, row)[k] = unseen;
        }
      }
    }
  }
};

void load_cache(Pass& pass, int layer, const AttentionShape& shape, const Slice& slice,
                int64_t n_keys, float* keys, float* values) {
  CUTAWAY_SPAN(span, "ops::load_cache", "keys", n_keys);
  const int64_t d = shape.d_head;
  for_rows(pass, shape.n_kv_heads * n_keys, [&](int64_t i) noexcept {
    const int64_t k = i % n_keys, p = k % kernels::kTilePositions;
    const kernels::KvTile tile = slice.kv->tile(layer, i / n_keys, k / kernels::kTilePositions);
    kernels::load_key(tile.type, tile.k, d, p, keys + i * d);
    kernels::load_value(tile.type, tile.v, d, p, values + i * d);
  });
  CUTAWAY_OUT(span, "heads", shape.n_kv_heads);
}

void score_row(const Block& b, const Rows& q, int64_t head, int64_t row) noexcept {
  const AttentionShape& shape = b.shape;
  const float* query = q.row(b.row_of_batch(row)) + head * shape.d_head;
  float* scores = b.map(head, row);
  for (int64_t k = 0; k < b.n_keys; ++k) {
    if (!sees(shape, b.position(row), k)) {
      scores[k] = kUnseen;
      continue;
    }
    const float* key = b.key(head, k);
    double sum = 0;
    for (int64_t i = 0; i < shape.d_head; ++i) sum += static_cast<double>(query[i]) * key[i];
    float score = static_cast<float>(sum) * shape.scale;
    if (shape.soft_cap > 0) score = shape.soft_cap * kernels::tanh_f32(score / shape.soft_cap);
    scores[k] = score;
  }
}

void softmax_row(float* row, int64_t n) noexcept {
  const float max = *std::max_element(row, row + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    row[i] = max == kUnseen ? 0 : kernels::exp_f32(row[i] - max);
    sum += static_cast<double>(row[i]);
  }
  if (sum == 0) return;  // every key was made unseen: the head reads nothing
  for (int64_t i = 0; i < n; ++i) row[i] = static_cast<float>(static_cast<double>(row[i]) / sum);
}

void read_row(const Block& b, const Rows& z, int64_t head, int64_t row) noexcept {
  const int64_t d = b.shape.d_head;
  double sums[kernels::kMaxHeadSize] = {};
  const float* pattern = b.map(head, row);
  for (int64_t k = 0; k < b.n_keys; ++k) {
    if (!sees(b.shape, b.position(row), k)) continue;
    const float* value = b.value(head, k);
    for (int64_t i = 0; i < d; ++i) sums[i] += static_cast<double>(pattern[k]) * value[i];
  }
  float* out = z.row(b.row_of_batch(row)) + head * d;
  for (int64_t i = 0; i < d; ++i) out[i] = static_cast<float>(sums[i]);
}

// The standing form of a block's rows, which editors may have changed: not all add up to 1 then.
class StandingForm {
 public:
  // Memory for blocks of `n` rows and `n_keys` keys; none when no probe wants it.
  StandingForm(Pass& pass, int layer, int64_t n_heads, int64_t n, int64_t n_keys)
      : pass_(pass), layer_(layer), k_(top_wanted(pass, layer)) {
    if (k_ == 0) return;
    tiles_ = (n_keys + kernels::kTilePositions - 1) / kernels::kTilePositions;
    const int64_t rows = n * n_heads;
    padded_ = pass.make(rows, tiles_ * kernels::kTilePositions);
    factor_ = pass.scratch.floats(tiles_);
    std::fill_n(factor_, tiles_, 1.0f);
    keys_ = pass.scratch.take<int32_t>(rows * k_);
    probabilities_ = pass.scratch.floats(rows * k_);
    rest_ = pass.scratch.floats(rows);
    entropy_ = pass.scratch.floats(rows);
  }

  void show(const Block& b) {
    if (k_ == 0) return;
    CUTAWAY_SPAN(span, "ops::StandingForm::show", "rows", b.n, "keys", k_);
    const int64_t n_heads = b.shape.n_heads;
    for_rows(pass_, b.n * n_heads,
             [&](int64_t i) noexcept { take(b.map(i % n_heads, i / n_heads), b.n_keys, i); });
    trace::AttentionTopEvent event;
    event.run = b.slice.run;
    event.seq = b.slice.seq;
    event.layer = layer_;
    event.first_position = static_cast<int32_t>(b.position(0));
    event.n = b.n;
    event.n_heads = n_heads;
    event.k = k_;
    event.keys = keys_;
    event.probabilities = probabilities_;
    event.rest = rest_;
    event.entropy = entropy_;
    for (trace::Probe* probe : pass_.probes) {
      if (probe->top_keys(layer_) > 0) probe->observe_top(event);
    }
    CUTAWAY_OUT(span, "heads", n_heads);
  }

 private:
  void take(const float* pattern, int64_t n_keys, int64_t at) noexcept {
    float* row = padded_.row(at);
    std::fill(std::copy_n(pattern, n_keys, row), row + padded_.d, 0.0f);
    kernels::TopKeys top;
    pass_.table.attention_top(row, factor_, tiles_, k_, top);
    std::copy_n(top.index, k_, keys_ + at * k_);
    std::copy_n(top.value, k_, probabilities_ + at * k_);
    double rest = 0, entropy = 0;
    for (int64_t i = 0; i < n_keys; ++i) {
      const auto p = static_cast<double>(pattern[i]);
      rest += p;
      if (p > 0) entropy -= p * kernels::log_f64(p);
    }
    for (int64_t j = 0; j < k_; ++j) rest -= static_cast<double>(top.value[j]);
    rest_[at] = static_cast<float>(rest);
    entropy_[at] = static_cast<float>(entropy);
  }

  Pass& pass_;
  int layer_;
  int64_t k_, tiles_ = 0;
  Rows padded_;
  float *factor_ = nullptr, *probabilities_ = nullptr, *rest_ = nullptr, *entropy_ = nullptr;
  int32_t* keys_ = nullptr;
};

// x as the product with `weight` reads it: itself, or what 8 bits leave of it.
Rows as_read(Pass& pass, const Rows& x, const Linear& linear) {
  if (!takes_q8(pass, linear.weight)) return x;
  const Rows out = pass.make(x.n, x.d);
  const Linear* const reader = &linear;
  const kernels::Q8Activations q8 = quantized_for(pass, x, {&reader, 1}).q8;
  for_rows(pass, x.n, [&](int64_t i) noexcept {
    const float* scale = q8.scale + i * (x.d / kernels::kBlockK);
    for (int64_t j = 0; j < x.d; ++j) {
      out.row(i)[j] = scale[j / kernels::kBlockK] * static_cast<float>(q8.q[i * x.d + j]);
    }
  });
  return out;
}

// {in features, out features}: a row of it is what one input feature adds to all outputs.
Rows by_input(Pass& pass, const Matrix& weight) {
  const int64_t in = weight.in_features(), n_out = weight.out_features();
  const Rows out = pass.make(in, n_out);
  const Scratch::Mark mark = pass.scratch.mark();
  const Rows rows = pass.make(n_out, in);
  for_rows(pass, n_out,
           [&](int64_t r) noexcept { kernels::unpack_row(weight.packed, r, rows.row(r)); });
  for_rows(pass, in, [&](int64_t i) noexcept {
    for (int64_t r = 0; r < n_out; ++r) out.row(i)[r] = rows.row(r)[i];
  });
  pass.scratch.rewind(mark);
  return out;
}

}  // namespace

void attend_plain(Pass& pass, int layer, const AttentionShape& shape, const Rows& q,
                  const Rows& z) {
  CUTAWAY_SPAN(span, "ops::attend_plain", "q", q.view(), "heads", shape.n_heads);
  CUTAWAY_CHECK(shape.d_head <= kernels::kMaxHeadSize);
  for (const Slice& slice : pass.batch.slices) {
    const Scratch::Mark mark = pass.scratch.mark();
    const int64_t all_keys = slice.first_position + slice.n;
    const int64_t kv_floats = shape.n_kv_heads * all_keys * shape.d_head;
    float* keys = pass.scratch.floats(kv_floats);
    float* values = pass.scratch.floats(kv_floats);
    load_cache(pass, layer, shape, slice, all_keys, keys, values);
    const int64_t most = std::max<int64_t>(1, kMostFloats / (shape.n_heads * all_keys));
    float* maps = pass.scratch.floats(shape.n_heads * std::min(most, slice.n) * all_keys);
    StandingForm standing(pass, layer, shape.n_heads, std::min(most, slice.n), all_keys);
    for (int64_t begin = 0; begin < slice.n; begin += most) {
      const int64_t n = std::min(most, slice.n - begin);
      const Block block{shape, slice, begin, n, all_keys, keys, values, maps};
      const Shape form{shape.n_heads, n, all_keys};
      for_rows(pass, shape.n_heads * n,
               [&](int64_t i) noexcept { score_row(block, q, i / n, i % n); });
      const auto tap = [&](Site site, float unseen) {
        pass.edit_values(site, layer, slice, block.position(0), maps, form);
        if (pass.changes(site, layer)) block.mask(unseen);
        pass.show_values(site, layer, slice, block.position(0), maps, form);
      };
      tap(Site::kAttnScores, kUnseen);
      for_rows(pass, shape.n_heads * n,
               [&](int64_t i) noexcept { softmax_row(maps + i * all_keys, all_keys); });
      tap(Site::kPattern, 0);
      standing.show(block);
      for_rows(pass, shape.n_heads * n,
               [&](int64_t i) noexcept { read_row(block, z, i / n, i % n); });
    }
    pass.scratch.rewind(mark);
  }
  CUTAWAY_OUT(span, "z", z.view());
}

void project_heads(Pass& pass, int layer, int64_t n_heads, const Rows& z, const Linear& o,
                   const Rows& out) {
  CUTAWAY_SPAN(span, "ops::project_heads", "z", z.view(), "heads", n_heads);
  CUTAWAY_CHECK(o.weight.in_features() == z.d && out.d == o.weight.out_features() &&
                z.d % n_heads == 0 && out.n == z.n);
  const Scratch::Mark mark = pass.scratch.mark();
  const int64_t d = z.d / n_heads;
  const Rows read = as_read(pass, z, o), weight = by_input(pass, o.weight);
  const int64_t most = std::max<int64_t>(1, kMostFloats / (n_heads * out.d));
  const Rows results = pass.make(std::min(most, z.n), n_heads * out.d);
  for (const Slice& slice : pass.batch.slices) {
    for (int64_t begin = 0; begin < slice.n; begin += most) {
      const int64_t n = std::min(most, slice.n - begin), first = slice.first_row + begin;
      for_rows(pass, n * n_heads, [&](int64_t i) noexcept {
        float* result = results.data + i * out.d;
        const float* head = read.row(first + i / n_heads) + i % n_heads * d;
        std::fill_n(result, out.d, 0.0f);
        for (int64_t j = 0; j < d; ++j) {
          const float* column = weight.row(i % n_heads * d + j);
          for (int64_t r = 0; r < out.d; ++r) result[r] += head[j] * column[r];
        }
      });
      pass.tap_values(Site::kResult, layer, slice, slice.first_position + begin, results.data,
                      Shape{n, n_heads, out.d});
      for_rows(pass, n, [&](int64_t i) noexcept {
        float* sum = out.row(first + i);
        std::fill_n(sum, out.d, 0.0f);
        for (int64_t h = 0; h < n_heads; ++h) {
          const float* result = results.row(i) + h * out.d;
          for (int64_t r = 0; r < out.d; ++r) sum[r] += result[r];
        }
        for (int64_t r = 0; r < o.bias.n; ++r) sum[r] += o.bias.data[r];
      });
    }
  }
  pass.scratch.rewind(mark);
  CUTAWAY_OUT(span, "out", out.view());
}

}  // namespace cutaway::ops
