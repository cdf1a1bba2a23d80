#include "ops/attention.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "base/check.h"
#include "ops/attention_maps.h"
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
  int64_t head(int64_t r) const { return kv_head * shape->group() + r % shape->group(); }
  int64_t offset(int64_t r) const { return head(r) * shape->d_head; }
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

// What rows of a call keep of one tile.
struct KeptRows {
  KeptRows(const KeptTiles& kept, const HeadQueries& h, int64_t row_begin, int64_t n, int64_t page,
           kernels::AttentionTileArgs& args) noexcept {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t head = h.head(row_begin + i), position = h.position(row_begin + i);
      scores[i] = kept.scores(page, head, position);
      weights[i] = kept.weights(i, page, head, position);
    }
    args.scores = scores;
    args.scores_n = kept.scores_n(page);
    args.weights = weights;
    args.weights_n = kept.weights_n(page);
    args.moment = moment;
  }
  void keep_statistics(const KeptTiles& kept, const float* max, const float* sum, int64_t n,
                       int64_t page) const noexcept {
    for (int64_t i = 0; i < n; ++i) {
      *kept.statistic(0, i, page) = max[i];
      *kept.statistic(1, i, page) = sum[i];
      *kept.statistic(2, i, page) = moment[i];
    }
  }
  float* scores[kMaxQueryRows];
  float* weights[kMaxQueryRows];
  float moment[kMaxQueryRows];
};

// `last_page`: up to where the caller goes on, tile by tile. `kept` may be null.
void tile_partials(const HeadQueries& h, int64_t row_begin, int64_t n, int64_t page,
                   int64_t last_page, const KeptTiles* kept, float* max, float* sum,
                   float* out) noexcept {
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
  if (kept == nullptr) {
    h.pass->table.attention_tile(args);
    return;
  }
  const KeptRows rows(*kept, h, row_begin, n, page, args);
  h.pass->table.attention_tile(args);
  rows.keep_statistics(*kept, max, sum, n, page);
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

// z and, where something is kept, the maps of one row.
void finish(const HeadQueries& h, int64_t r, int64_t i, const Running& running,
            const KeptTiles* kept) noexcept {
  h.pass->table.attention_finish(running.sum, h.shape->d_head, h.output(r));
  if (kept == nullptr) return;
  kept->finish(h.pass->table, i, h.head(r), h.shape->n_heads, h.position(r), r / h.shape->group(),
               running.max, running.sum);
}

// Query rows of one slice and KV head that are computed together.
struct Task {
  HeadQueries queries;
  int64_t begin, n;
  const SliceMaps* maps;  // null: nothing is kept beside z

  int64_t first_page() const { return queries.first_key(begin) / kTilePositions; }
  int64_t pages() const {
    return queries.position(begin + n - 1) / kTilePositions + 1 - first_page();
  }
};

// The rows of a task over all their tiles, in order. `kept` may be null.
void attend_rows(const Task& task, const KeptTiles* kept) noexcept {
  const HeadQueries& h = task.queries;
  const int64_t d = h.shape->d_head, row_begin = task.begin, n = task.n;
  Partials partials;
  Running running[kMaxQueryRows];
  for (int64_t i = 0; i < n; ++i) std::fill_n(h.output(row_begin + i), d, 0.0f);
  const int64_t first_page = task.first_page();
  const int64_t last_page = first_page + task.pages() - 1;
  for (int64_t page = first_page; page <= last_page; ++page) {
    tile_partials(h, row_begin, n, page, last_page, kept, partials.max, partials.sum, partials.out);
    for (int64_t i = 0; i < n; ++i) {
      merge(h, row_begin + i, running[i], partials.max[i], partials.sum[i], partials.out + i * d);
    }
  }
  for (int64_t i = 0; i < n; ++i) finish(h, row_begin + i, i, running[i], kept);
}

// The same of many tasks. What is kept of a task's tiles lies in memory of the thread's own, which
// its first cache holds as a rule: so threads take tasks themselves.
void attend_whole(std::span<const Task> tasks, Pass& pass) {
  int64_t most = 0;
  for (const Task& t : tasks) {
    if (t.maps != nullptr) most = std::max(most, KeptTiles::floats(*t.maps, t.n, t.pages()));
  }
  if (most == 0) {
    pass.pool.parallel_for(tasks.size(),
                           [&](size_t i) noexcept { attend_rows(tasks[i], nullptr); });
    return;
  }
  const auto shares = static_cast<size_t>(pass.pool.size());
  const Scratch::Mark mark = pass.scratch.mark();
  float* const memory = pass.scratch.floats(static_cast<int64_t>(shares) * most);
  std::atomic<size_t> next{0};
  pass.pool.parallel_for(shares, [&](size_t share) noexcept {
    for (size_t i = next.fetch_add(1); i < tasks.size(); i = next.fetch_add(1)) {
      const Task& t = tasks[i];
      const KeptTiles kept(*t.maps, memory + static_cast<int64_t>(share) * most, t.n,
                           t.first_page(), t.pages());
      attend_rows(t, &kept);
    }
  });
  pass.scratch.rewind(mark);
}

// Few rows over many tiles (decode at depth): threads take tiles, those of all tasks in one job;
// each task's merge then runs in order.
void attend_by_tiles(std::span<const Task> tasks, Pass& pass) {
  constexpr int64_t kPagesPerChunk = 4;
  // Of each page (max[n], sum[n], out[n][d]), in cache lines of its own: threads that work on
  // neighbouring pages do not write to the same line.
  constexpr int64_t kLine = 16;
  const auto stride = [](const Task& t) {
    return (t.n * (t.queries.shape->d_head + 2) + kLine - 1) / kLine * kLine;
  };
  const Scratch::Mark mark = pass.scratch.mark();
  std::vector<float*> partials;
  std::vector<KeptTiles> kept;  // of every task, or none
  std::vector<size_t> first_chunk{0};
  for (const Task& t : tasks) {
    if (t.maps != nullptr) {
      float* memory = pass.scratch.floats(KeptTiles::floats(*t.maps, t.n, t.pages()));
      kept.emplace_back(*t.maps, memory, t.n, t.first_page(), t.pages());
    }
    partials.push_back(pass.scratch.floats(t.pages() * stride(t)));
    const int64_t chunks = (t.pages() + kPagesPerChunk - 1) / kPagesPerChunk;
    first_chunk.push_back(first_chunk.back() + static_cast<size_t>(chunks));
  }
  pass.pool.parallel_for(first_chunk.back(), [&](size_t chunk) noexcept {
    const auto after = std::upper_bound(first_chunk.begin(), first_chunk.end(), chunk);
    const auto i = static_cast<size_t>(after - first_chunk.begin()) - 1;
    const Task& t = tasks[i];
    const int64_t begin = static_cast<int64_t>(chunk - first_chunk[i]) * kPagesPerChunk;
    const int64_t end = std::min(begin + kPagesPerChunk, t.pages());
    // A thread goes on with the next chunk, as a rule: its first page is fetched meanwhile too.
    const int64_t last_page = t.first_page() + t.pages() - 1;
    for (int64_t p = begin; p < end; ++p) {
      float* to = partials[i] + p * stride(t);
      tile_partials(t.queries, t.begin, t.n, t.first_page() + p, last_page,
                    kept.empty() ? nullptr : &kept[i], to, to + t.n, to + 2 * t.n);
    }
  });
  pass.pool.parallel_for(tasks.size(), [&](size_t i) noexcept {
    const Task& t = tasks[i];
    const int64_t d = t.queries.shape->d_head, pages = t.pages();
    for (int64_t r = 0; r < t.n; ++r) {
      Running running;
      std::fill_n(t.queries.output(t.begin + r), d, 0.0f);
      for (int64_t p = 0; p < pages; ++p) {
        const float* from = partials[i] + p * stride(t);
        merge(t.queries, t.begin + r, running, from[r], from[t.n + r], from + 2 * t.n + r * d);
      }
      finish(t.queries, t.begin + r, r, running, kept.empty() ? nullptr : &kept[i]);
    }
  });
  pass.scratch.rewind(mark);
}

int64_t count_tasks(const Pass& pass, const AttentionShape& shape, int64_t rows_per_call) {
  int64_t tasks = 0;
  for (const Slice& slice : pass.batch.slices) {
    const int64_t rows = slice.n * shape.group();
    tasks += shape.n_kv_heads * ((rows + rows_per_call - 1) / rows_per_call);
  }
  return tasks;
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
  // Few tasks cannot keep every thread busy: then the tiles within each are shared out instead. The
  // bits are the same.
  constexpr int64_t kTilesWorthSharing = 8;
  std::vector<Task> whole, shared;
  const Scratch::Mark mark = pass.scratch.mark();
  const std::vector<SliceMaps> maps = maps_wanted(pass, layer, shape);
  const int64_t tasks = count_tasks(pass, shape, rows_per_call);
  const bool by_tiles = pass.pool.size() > 1 && tasks < 4 * pass.pool.size();
  for (size_t s = 0; s < pass.batch.slices.size(); ++s) {
    for (int64_t kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
      const HeadQueries h{&pass, &shape, &pass.batch.slices[s], &q, &z, layer, kv_head};
      for (int64_t r = 0; r < h.rows(); r += rows_per_call) {
        const Task task{h, r, std::min(rows_per_call, h.rows() - r),
                        maps.empty() ? nullptr : &maps[s]};
        (by_tiles && task.pages() > kTilesWorthSharing ? shared : whole).push_back(task);
      }
    }
  }
  attend_by_tiles(shared, pass);
  attend_whole(whole, pass);
  if (!maps.empty()) show_maps(pass, layer, shape, maps);
  pass.scratch.rewind(mark);
  CUTAWAY_OUT(span, "z", z.view());
}

}  // namespace cutaway::ops
