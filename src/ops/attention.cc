#include "ops/attention.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "trace/trace.h"

namespace cutaway::ops {
namespace {

using kernels::kTilePositions;

// Query rows per kernel call: a loaded key serves all of them. Bounded so that a task's partial
// results live on its stack.
constexpr int64_t kMaxQueryRows = 30;
constexpr int64_t kMaxPartialFloats = 8192;

// The query rows of one slice and KV head: row r is position r / group and head r % group of the
// group.
struct HeadQueries {
  const Pass* pass;
  const AttentionShape* shape;
  const Slice* slice;
  const Rows* q;
  const Rows* z;
  int layer;
  int64_t kv_head;

  int64_t rows() const { return slice->n * shape->group(); }
  int64_t position(int64_t r) const { return slice->first_position + r / shape->group(); }
  int64_t offset(int64_t r) const {
    return (kv_head * shape->group() + r % shape->group()) * shape->d_head;
  }
  const float* query(int64_t r) const {
    return q->row(slice->first_row + r / shape->group()) + offset(r);
  }
  float* output(int64_t r) const {
    return z->row(slice->first_row + r / shape->group()) + offset(r);
  }
  // First key that row r sees.
  int64_t first_key(int64_t r) const {
    return shape->window > 0 ? std::max<int64_t>(0, position(r) - shape->window + 1) : 0;
  }
};

// Partial results of up to kMaxQueryRows rows over one tile.
struct Partials {
  float max[kMaxQueryRows];
  float sum[kMaxQueryRows];
  float out[kMaxPartialFloats];
};

// `last_page`: up to where the caller goes on, tile by tile.
void tile_partials(const HeadQueries& h, int64_t row_begin, int64_t n, int64_t page,
                   int64_t last_page, float* max, float* sum, float* out) noexcept {
  const float* queries[kMaxQueryRows];
  int32_t begin[kMaxQueryRows], end[kMaxQueryRows];
  const int64_t base = page * kTilePositions;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t r = row_begin + i;
    queries[i] = h.query(r);
    begin[i] = static_cast<int32_t>(std::clamp<int64_t>(h.first_key(r) - base, 0, kTilePositions));
    end[i] = static_cast<int32_t>(
        std::clamp<int64_t>(h.position(r) + 1 - base, begin[i], kTilePositions));
  }
  kernels::AttentionTileArgs args;
  args.tile = h.slice->kv->tile(h.layer, h.kv_head, page);
  if (page < last_page) args.next = h.slice->kv->tile(h.layer, h.kv_head, page + 1);
  args.d_k = args.d_v = h.shape->d_head;
  args.n = n;
  args.q = queries;
  args.scale = h.shape->scale;
  args.soft_cap = h.shape->soft_cap;
  args.begin = begin;
  args.end = end;
  args.max = max;
  args.sum = sum;
  args.out = out;
  h.pass->table.attention_tile(args);
}

// The running result of one row; z holds its out.
struct Running {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
};

void merge(const HeadQueries& h, int64_t r, Running& running, float max, float sum,
           const float* out) noexcept {
  h.pass->table.attention_merge(max, sum, out, h.shape->d_head, &running.max, &running.sum,
                                h.output(r));
}

// Rows [row_begin, row_begin + n) over all their tiles, in order.
void attend_rows(const HeadQueries& h, int64_t row_begin, int64_t n) noexcept {
  const int64_t d = h.shape->d_head;
  Partials partials;
  Running running[kMaxQueryRows];
  for (int64_t i = 0; i < n; ++i) std::fill_n(h.output(row_begin + i), d, 0.0f);
  const int64_t first_page = h.first_key(row_begin) / kTilePositions;
  const int64_t last_page = h.position(row_begin + n - 1) / kTilePositions;
  for (int64_t page = first_page; page <= last_page; ++page) {
    tile_partials(h, row_begin, n, page, last_page, partials.max, partials.sum, partials.out);
    for (int64_t i = 0; i < n; ++i) {
      merge(h, row_begin + i, running[i], partials.max[i], partials.sum[i], partials.out + i * d);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    h.pass->table.attention_finish(running[i].sum, d, h.output(row_begin + i));
  }
}

// Few rows over many tiles (decode at depth): threads take tiles; the merge then runs in order.
void attend_by_tiles(const HeadQueries& h, int64_t row_begin, int64_t n, Pass& pass) {
  const int64_t d = h.shape->d_head;
  const int64_t first_page = h.first_key(row_begin) / kTilePositions;
  const int64_t pages = h.position(row_begin + n - 1) / kTilePositions + 1 - first_page;
  const Scratch::Mark mark = pass.scratch.mark();
  float* max = pass.scratch.floats(pages * n);
  float* sum = pass.scratch.floats(pages * n);
  float* out = pass.scratch.floats(pages * n * d);
  constexpr int64_t kPagesPerChunk = 4;
  pass.pool.parallel_for(static_cast<size_t>((pages + kPagesPerChunk - 1) / kPagesPerChunk),
                         [&](size_t chunk) noexcept {
                           const int64_t begin = static_cast<int64_t>(chunk) * kPagesPerChunk;
                           const int64_t end = std::min(begin + kPagesPerChunk, pages);
                           for (int64_t p = begin; p < end; ++p) {
                             tile_partials(h, row_begin, n, first_page + p, first_page + end - 1,
                                           max + p * n, sum + p * n, out + p * n * d);
                           }
                         });
  for (int64_t i = 0; i < n; ++i) {
    Running running;
    std::fill_n(h.output(row_begin + i), d, 0.0f);
    for (int64_t p = 0; p < pages; ++p) {
      merge(h, row_begin + i, running, max[p * n + i], sum[p * n + i], out + (p * n + i) * d);
    }
    pass.table.attention_finish(running.sum, d, h.output(row_begin + i));
  }
  pass.scratch.rewind(mark);
}

}  // namespace

void store_kv(Pass& pass, int layer, const AttentionShape& shape, const Rows& k, const Rows& v) {
  CUTAWAY_SPAN(span, "ops::store_kv", "k", k.view(), "v", v.view());
  const int64_t d = shape.d_head;
  const auto one = [&](const Slice& slice, int64_t i) noexcept {
    const int64_t position = slice.first_position + i;
    const int64_t page = position / kTilePositions;
    const int64_t p = position % kTilePositions;
    const kernels::KvType type = slice.kv->geometry().type;
    for (int64_t h = 0; h < shape.n_kv_heads; ++h) {
      pass.table.store_key(type, k.row(slice.first_row + i) + h * d, d, p,
                           slice.kv->key_data(layer, h, page));
      pass.table.store_value(type, v.row(slice.first_row + i) + h * d, d, p,
                             slice.kv->value_data(layer, h, page));
    }
  };
  for (const Slice& slice : pass.batch.slices) {
    CUTAWAY_CHECK(slice.first_position + slice.n <= slice.kv->page_count() * kTilePositions);
    for_rows(pass, slice.n, [&](int64_t i) noexcept { one(slice, i); });
  }
  CUTAWAY_OUT(span, "positions", k.n);
}

void attend(Pass& pass, int layer, const AttentionShape& shape, const Rows& q, const Rows& z) {
  CUTAWAY_SPAN(span, "ops::attend", "q", q.view(), "heads", shape.n_heads, "kv_heads",
               shape.n_kv_heads);
  CUTAWAY_CHECK(shape.d_head <= kernels::kMaxHeadSize && shape.n_heads % shape.n_kv_heads == 0);
  const int64_t rows_per_call =
      std::clamp<int64_t>(kMaxPartialFloats / shape.d_head, 1, kMaxQueryRows);
  struct Task {
    HeadQueries queries;
    int64_t begin, n;
  };
  std::vector<Task> tasks;
  for (const Slice& slice : pass.batch.slices) {
    for (int64_t kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
      const HeadQueries h{&pass, &shape, &slice, &q, &z, layer, kv_head};
      for (int64_t r = 0; r < h.rows(); r += rows_per_call) {
        tasks.push_back({h, r, std::min(rows_per_call, h.rows() - r)});
      }
    }
  }
  // Few tasks cannot keep every thread busy: then the tiles within each are shared out instead. The
  // bits are the same.
  constexpr int64_t kTilesWorthSharing = 8;
  const bool by_tiles =
      pass.pool.size() > 1 && static_cast<int64_t>(tasks.size()) < 4 * pass.pool.size();
  const auto shared = [&](const Task& t) {
    return by_tiles && (t.queries.position(t.begin + t.n - 1) - t.queries.first_key(t.begin)) /
                               kTilePositions >=
                           kTilesWorthSharing;
  };
  std::vector<Task> whole;
  for (const Task& t : tasks) {
    if (shared(t)) {
      attend_by_tiles(t.queries, t.begin, t.n, pass);
    } else {
      whole.push_back(t);
    }
  }
  pass.pool.parallel_for(whole.size(), [&](size_t i) noexcept {
    attend_rows(whole[i].queries, whole[i].begin, whole[i].n);
  });
  CUTAWAY_OUT(span, "z", z.view());
}

}  // namespace cutaway::ops
