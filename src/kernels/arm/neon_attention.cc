// Attention over one tile of keys. Up to six query rows share each key and value that is loaded; a
// row's own arithmetic is the same in any company: over d (scores) and over positions (values) in
// order, one lane per key and per element of the output.
#include <limits>

#include "kernels/arm/neon_kv.h"

namespace cutaway::kernels::neon {
namespace {

constexpr int kMaxRows = 6;  // × 4 vectors = 24 sums
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Of `vectors` times four products from position `first` on: the scores, −inf where the row does
// not see.
void to_scores(const AttentionTileArgs& args, int64_t row, int64_t first, int64_t vectors,
               float* scores) noexcept {
  const float32x4_t cap = vdupq_n_f32(args.soft_cap);
  for (int64_t p = first; p < first + 4 * vectors; p += 4) {
    float32x4_t s = vmulq_n_f32(vld1q_f32(scores + p), args.scale);
    if (args.soft_cap > 0) s = vmulq_f32(cap, tanh4(vdivq_f32(s, cap)));
    const uint32x4_t seen = seen_lanes(p, args.begin[row], args.end[row]);
    vst1q_f32(scores + p, vbslq_f32(seen, s, vdupq_n_f32(kMinusInfinity)));
  }
}

// Scores of R rows and the B key blocks from `block` on.
template <KvType T, int R, int B>
CUTAWAY_INLINE void score_blocks(const AttentionTileArgs& args, const float* const (&q)[R],
                                 const float* const (&sums)[R], int64_t r0, int64_t block,
                                 float (&scores)[R][kTilePositions]) noexcept {
  const int64_t ahead = bytes_ahead(args.tile.k, args.next.k);
  float32x4_t acc[R][B][kKeyVectors];
  if constexpr (is_quantised(T)) {
    scaled_products<T, R, B>(args.tile.k, args.d_k, block, ahead, q, sums, acc);
  } else {
    plain_products<T, R, B>(args.tile.k, args.d_k, block, ahead, q, acc);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int b = 0; b < B; ++b) {
#pragma GCC unroll 16
      for (int v = 0; v < kKeyVectors; ++v) {
        vst1q_f32(scores[r] + (block + b) * kKeyLanes + 4 * v, acc[r][b][v]);
      }
    }
  }
  for (int64_t r = 0; r < R; ++r) {
    to_scores(args, r0 + r, block * kKeyLanes, B * kKeyVectors, scores[r]);
  }
}

// Turns a row's scores of [begin, end) into exp(score − max), 0 around them up to whole vectors.
// The sum is taken over lanes of fixed positions, where a key that is not seen adds an exact 0.
template <bool Kept>
CUTAWAY_INLINE void soften(float* scores, int64_t begin, int64_t end, float* max, float* sum,
                           float* moment) noexcept {
  *max = kMinusInfinity;
  *sum = 0;
  if constexpr (Kept) *moment = 0;
  if (begin >= end) return;
  const int64_t from = begin / 8 * 8;
  float32x4_t most = vdupq_n_f32(kMinusInfinity);
  for (int64_t p = from; p < end; p += 8) {  // a NaN is left to the sum, as in ref
    most = vmaxnmq_f32(most, vmaxnmq_f32(vld1q_f32(scores + p), vld1q_f32(scores + p + 4)));
  }
  *max = vmaxnmvq_f32(most);
  const float32x4_t shift = vdupq_n_f32(*max);
  float32x4_t total[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
  float32x4_t moments[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
  for (int64_t p = from; p < end; p += 8) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const float32x4_t shifted = vsubq_f32(vld1q_f32(scores + p + 4 * h), shift);
      const float32x4_t weight = exp4(shifted);
      total[h] = vaddq_f32(total[h], weight);
      vst1q_f32(scores + p + 4 * h, weight);
      if constexpr (Kept) {  // an unseen key's −inf times its 0 is no 0
        const uint32x4_t unseen = vceqq_f32(shifted, vdupq_n_f32(kMinusInfinity));
        const float32x4_t product = vmulq_f32(weight, shifted);
        moments[h] = vaddq_f32(moments[h], vbslq_f32(unseen, vdupq_n_f32(0), product));
      }
    }
  }
  *sum = sum_lanes(total[0], total[1]);
  if constexpr (Kept) *moment = sum_lanes(moments[0], moments[1]);
}

// The first n numbers of a row that has them in [begin, end), up to whole vectors around it.
CUTAWAY_INLINE void keep_row(const float* row, int64_t begin, int64_t end, float unseen, int64_t n,
                             float* out) noexcept {
  const int64_t from = begin < end ? begin / 8 * 8 : kTilePositions;
  for (int64_t p = 0; p < n; p += 4) {
    const bool there = p >= from && p / 8 * 8 < end;
    store_first(out + p, n - p, there ? vld1q_f32(row + p) : vdupq_n_f32(unseen));
  }
}

// The keys that each row of a call sees, those that some row sees, and those that every row sees.
template <int R>
struct Seen {
  explicit Seen(const AttentionTileArgs& args, int64_t r0) noexcept {
    for (int r = 0; r < R; ++r) {
      begin[r] = args.begin[r0 + r];
      end[r] = args.end[r0 + r];
      if (begin[r] < end[r] && begin[r] < some_begin) some_begin = begin[r];
      if (begin[r] < end[r] && end[r] > some_end) some_end = end[r];
      if (begin[r] > all_begin) all_begin = begin[r];
      if (end[r] < all_end) all_end = end[r];
    }
  }
  // Calls one(r, begin, end) for what row r sees before what all see, all(begin, end), and one()
  // again for what it sees after: every row's keys in order.
  template <typename One, typename All>
  void in_order(const One& one, const All& all) const noexcept {
    const bool together = all_begin < all_end;
    for (int r = 0; r < R; ++r) one(r, begin[r], together ? all_begin : end[r]);
    if (!together) return;
    all(all_begin, all_end);
    for (int r = 0; r < R; ++r) one(r, all_end, end[r]);
  }

  int64_t begin[R], end[R];
  int64_t some_begin = kTilePositions, some_end = 0, all_begin = 0, all_end = kTilePositions;
};

template <KvType T, int R>
void plain_values(const AttentionTileArgs& args, const Seen<R>& seen, const float* const* weights,
                  float* const* out) noexcept {
  const auto* v = static_cast<const Element<T>*>(args.tile.v);
  const int64_t ahead = bytes_ahead(args.tile.v, args.next.v);
  for (int r = 0; r < R; ++r) {
    std::memset(out[r], 0, static_cast<size_t>(args.d_v) * sizeof(float));
  }
  seen.in_order(
      [&](int r, int64_t begin, int64_t end) noexcept {
        add_plain_values<T, 1>(v, args.d_v, weights + r, begin, end, out + r, ahead);
      },
      [&](int64_t begin, int64_t end) noexcept {
        add_plain_values<T, R>(v, args.d_v, weights, begin, end, out, ahead);
      });
}

template <KvType T, int R>
void quantised_values(const AttentionTileArgs& args, const Seen<R>& seen,
                      const float* const* weights, float* const* out) noexcept {
  const int64_t blocks = kv_blocks(args.d_v);
  const int64_t stride = T == KvType::kQ8 ? args.d_v : blocks * kHalfBlock;
  constexpr int64_t kPerBlock = T == KvType::kQ8 ? kKvBlock : kHalfBlock;
  const auto* v = static_cast<const Element<T>*>(args.tile.v);
  const auto* next = static_cast<const char*>(args.next.v == nullptr ? args.tile.v : args.next.v);
  const int64_t ahead = bytes_ahead(args.tile.v, args.next.v);
  const uint16_t* scales = tile_scales(T, args.tile.v, args.d_v);
  float scale[kMaxKvBlocks * kTilePositions], min[kMaxKvBlocks * kTilePositions];
  transpose_scales(scales, blocks, ahead, scale);
  if constexpr (T == KvType::kQ4) {
    transpose_scales(scales + kTilePositions * blocks, blocks, ahead, min);
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t n = args.d_v - b * kKvBlock < kKvBlock ? args.d_v - b * kKvBlock : kKvBlock;
    float scaled[R][kTilePositions];
    const float* block_weights[R];
    float* block_out[R];
    for (int r = 0; r < R; ++r) {
      block_weights[r] = scaled[r];
      block_out[r] = out[r] + b * kKvBlock;
      scale_weights(weights[r], scale + b * kTilePositions, seen.begin[r], seen.end[r], scaled[r]);
      float32x4_t start = vdupq_n_f32(0);
      if constexpr (T == KvType::kQ4) {
        start = vdupq_n_f32(
            weighted_min(weights[r], min + b * kTilePositions, seen.begin[r], seen.end[r]));
      }
      for (int64_t i = 0; i < n; i += 4) store_first(block_out[r] + i, n - i, start);
    }
    const Element<T>* block = v + b * kPerBlock;
    const char* fetched = next + b * kPerBlock * kTilePositions;
    seen.in_order(
        [&](int r, int64_t begin, int64_t end) noexcept {
          add_block<T, 1>(block, stride, block_weights + r, begin, end, block_out + r, n, fetched);
        },
        [&](int64_t begin, int64_t end) noexcept {
          add_block<T, R>(block, stride, block_weights, begin, end, block_out, n, fetched);
        });
  }
}

template <KvType T, int R>
void attend(const AttentionTileArgs& args, int64_t r0) noexcept {
  const Seen<R> seen(args, r0);
  const float* q[R];
  const float* sums[R] = {};
  float query_sums[R][kMaxKvBlocks];
  for (int r = 0; r < R; ++r) {
    q[r] = args.q[r0 + r];
    if constexpr (T == KvType::kQ4) {
      block_sums(q[r], args.d_k, query_sums[r]);
      sums[r] = query_sums[r];
    }
  }
  float scores[R][kTilePositions];
  constexpr int kBlocks = R == 1 ? 4 : R <= 3 ? 2 : 1;
  const int64_t block_end = (seen.some_end + kKeyLanes - 1) / kKeyLanes;
  int64_t block = seen.some_begin / kKeyLanes;
  for (; block + kBlocks <= block_end; block += kBlocks) {
    score_blocks<T, R, kBlocks>(args, q, sums, r0, block, scores);
  }
  for (; block < block_end; ++block) score_blocks<T, R, 1>(args, q, sums, r0, block, scores);

  const float* weights[R];
  float* out[R];
  for (int r = 0; r < R; ++r) {
    weights[r] = scores[r];
    out[r] = args.out + (r0 + r) * args.d_v;
    const int64_t row = r0 + r;
    if (args.scores != nullptr && args.scores[row] != nullptr) {
      keep_row(scores[r], seen.begin[r], seen.end[r], kMinusInfinity, args.scores_n,
               args.scores[row]);
    }
    if (args.moment == nullptr) {
      soften<false>(scores[r], seen.begin[r], seen.end[r], args.max + row, args.sum + row, nullptr);
    } else {
      soften<true>(scores[r], seen.begin[r], seen.end[r], args.max + row, args.sum + row,
                   args.moment + row);
    }
    if (args.weights != nullptr && args.weights[row] != nullptr) {
      keep_row(scores[r], seen.begin[r], seen.end[r], 0, args.weights_n, args.weights[row]);
    }
  }
  if constexpr (is_quantised(T)) {
    quantised_values<T, R>(args, seen, weights, out);
  } else {
    plain_values<T, R>(args, seen, weights, out);
  }
}

template <KvType T, int R = kMaxRows>
void attend_rows(const AttentionTileArgs& args, int64_t r0) noexcept {
  for (; args.n - r0 >= R; r0 += R) attend<T, R>(args, r0);
  if constexpr (R > 1) {
    if (r0 < args.n) attend_rows<T, R - 1>(args, r0);
  }
}

}  // namespace

void attention_tile(const AttentionTileArgs& args) noexcept {
  switch (args.tile.type) {
    case KvType::kF32:
      return attend_rows<KvType::kF32>(args, 0);
    case KvType::kF16:
      return attend_rows<KvType::kF16>(args, 0);
    case KvType::kQ8:
      return attend_rows<KvType::kQ8>(args, 0);
    case KvType::kQ4:
      return attend_rows<KvType::kQ4>(args, 0);
  }
}

void attention_merge(float tile_max, float tile_sum, const float* tile_out, int64_t d_v, float* max,
                     float* sum, float* out) noexcept {
  if (tile_sum == 0) return;  // the tile showed nothing (one visible key alone gives 1)
  const float merged = tile_max > *max ? tile_max : *max;
  const float shifted[4] = {*max - merged, tile_max - merged, 0, 0};
  const float32x4_t factors = exp4(vld1q_f32(shifted));
  const float keep = vgetq_lane_f32(factors, 0);
  const float take = vgetq_lane_f32(factors, 1);
  *max = merged;
  *sum = keep * *sum + take * tile_sum;
  for (int64_t i = 0; i < d_v; i += 4) {
    const float32x4_t kept = vmulq_n_f32(load_first(out + i, d_v - i), keep);
    store_first(out + i, d_v - i, vfmaq_n_f32(kept, load_first(tile_out + i, d_v - i), take));
  }
}

void attention_finish(float sum, int64_t d_v, float* out) noexcept {
  const float32x4_t divisor = vdupq_n_f32(sum);
  for (int64_t i = 0; i < d_v; i += 4) {
    store_first(out + i, d_v - i, vdivq_f32(load_first(out + i, d_v - i), divisor));
  }
}

}  // namespace cutaway::kernels::neon
