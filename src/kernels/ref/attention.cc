#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/math.h"
#include "kernels/ref/ref.h"

namespace cutaway::kernels::ref {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// One position's place in a tile: array index = first + i · step for its i-th element or block.
struct Place {
  int64_t first, step;
};
Place key_place(int64_t p, int64_t per_position) noexcept {
  return {p / kKeyLanes * per_position * kKeyLanes + p % kKeyLanes, kKeyLanes};
}
Place value_place(int64_t p, int64_t per_position) noexcept { return {p * per_position, 1}; }

// Nearest integer of [low, high], ties to even whatever rounding mode the caller runs in.
int32_t round_to(float x, float low, float high) noexcept {
  const float inside = std::clamp(x, low, high);
  const float below = std::floor(inside);
  const float rest = inside - below;
  const auto n = static_cast<int32_t>(below);
  return rest > 0.5f || (rest == 0.5f && n % 2 != 0) ? n + 1 : n;
}

// Stores one block of `n` ≤ 32 elements and its scales: elements at q[place], scales at d[0], m[0].
void store_block_q8(const float* x, int64_t n, const Place& place, int8_t* q,
                    uint16_t* d) noexcept {
  float most = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    most = std::max(most, std::fabs(x[i]));
    finite &= std::isfinite(x[i]);
  }
  *d = f32_to_f16(finite ? most / 127.0f : std::numeric_limits<float>::quiet_NaN());
  const float scale = f16_to_f32(*d);
  const bool usable = scale > 0 && std::isfinite(scale);
  for (int64_t i = 0; i < n; ++i) {
    q[place.first + i * place.step] =
        static_cast<int8_t>(usable ? round_to(x[i] / scale, -127, 127) : 0);
  }
}

void store_block_q4(const float* x, int64_t n, const Place& place, uint8_t* q, uint16_t* d,
                    uint16_t* m) noexcept {
  float low = x[0], high = x[0];
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
    finite &= std::isfinite(x[i]);
  }
  // −0 + 0 is 0: which zero came first must not show in the stored bits.
  low += 0.0f;
  high += 0.0f;
  *m = f32_to_f16(finite ? low : 0.0f);
  const float min = f16_to_f32(*m);
  *d = f32_to_f16(finite ? std::max(high - min, 0.0f) / 15.0f
                         : std::numeric_limits<float>::quiet_NaN());
  const float scale = f16_to_f32(*d);
  const bool usable = scale > 0 && std::isfinite(scale);
  constexpr int64_t kHalf = kKvBlock / 2;
  for (int64_t j = 0; j < kHalf; ++j) {
    const auto nibble = [&](int64_t i) noexcept {
      return i < n && usable ? round_to((x[i] - min) / scale, 0, 15) : 0;
    };
    q[place.first + j * place.step] = static_cast<uint8_t>(nibble(j) | nibble(j + kHalf) << 4);
  }
}

using PlaceOf = Place (*)(int64_t p, int64_t per_position) noexcept;

void store(KvType type, const float* x, int64_t d, int64_t p, PlaceOf place_of,
           void* tile) noexcept {
  const int64_t blocks = kv_blocks(d);
  auto* scales =
      reinterpret_cast<uint16_t*>(static_cast<uint8_t*>(tile) + kv_element_bytes(type, d));
  const Place scale_place = place_of(p, blocks);
  if (type == KvType::kF32 || type == KvType::kF16) {
    const Place place = place_of(p, d);
    for (int64_t i = 0; i < d; ++i) {
      const int64_t at = place.first + i * place.step;
      if (type == KvType::kF32) {
        static_cast<float*>(tile)[at] = x[i];
      } else {
        static_cast<uint16_t*>(tile)[at] = f32_to_f16(x[i]);
      }
    }
    return;
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t n = std::min(kKvBlock, d - b * kKvBlock);
    uint16_t* scale = scales + scale_place.first + b * scale_place.step;
    if (type == KvType::kQ8) {
      Place place = place_of(p, d);
      place.first += b * kKvBlock * place.step;
      store_block_q8(x + b * kKvBlock, n, place, static_cast<int8_t*>(tile), scale);
    } else {
      Place place = place_of(p, blocks * (kKvBlock / 2));
      place.first += b * (kKvBlock / 2) * place.step;
      store_block_q4(x + b * kKvBlock, n, place, static_cast<uint8_t*>(tile), scale,
                     scale + kTilePositions * blocks);
    }
  }
}

float score(const AttentionTileArgs& args, const float* q, int64_t p) noexcept {
  float key[kMaxHeadSize];
  load_key(args.tile.type, args.tile.k, args.d_k, p, key);
  float dot = 0;
  for (int64_t i = 0; i < args.d_k; ++i) dot += q[i] * key[i];
  dot *= args.scale;
  return args.soft_cap > 0 ? args.soft_cap * tanh_f32(dot / args.soft_cap) : dot;
}

// The first n of a row, `unseen` outside [begin, end).
void copy_seen(const float* row, int64_t begin, int64_t end, float unseen, int64_t n,
               float* out) noexcept {
  for (int64_t p = 0; p < n; ++p) out[p] = p >= begin && p < end ? row[p] : unseen;
}

}  // namespace

void store_key(KvType type, const float* key, int64_t d, int64_t p, void* k) noexcept {
  store(type, key, d, p, key_place, k);
}

void store_value(KvType type, const float* value, int64_t d, int64_t p, void* v) noexcept {
  store(type, value, d, p, value_place, v);
}

void attention_tile(const AttentionTileArgs& args) noexcept {
  for (int64_t r = 0; r < args.n; ++r) {
    const int64_t begin = args.begin[r];
    const int64_t end = args.end[r];
    float weight[kTilePositions];
    float max = kMinusInfinity;
    for (int64_t p = begin; p < end; ++p) {
      weight[p] = score(args, args.q[r], p);
      max = std::max(max, weight[p]);
    }
    if (args.scores != nullptr && args.scores[r] != nullptr) {
      copy_seen(weight, begin, end, kMinusInfinity, args.scores_n, args.scores[r]);
    }
    float* out = args.out + r * args.d_v;
    std::fill_n(out, args.d_v, 0.0f);
    float sum = 0, moment = 0;
    for (int64_t p = begin; p < end; ++p) {
      const float shifted = weight[p] - max;
      weight[p] = exp_f32(shifted);
      sum += weight[p];
      moment += weight[p] * shifted;
      float value[kMaxHeadSize];
      load_value(args.tile.type, args.tile.v, args.d_v, p, value);
      for (int64_t i = 0; i < args.d_v; ++i) out[i] += weight[p] * value[i];
    }
    args.max[r] = max;
    args.sum[r] = sum;
    if (args.moment != nullptr) args.moment[r] = moment;
    if (args.weights != nullptr && args.weights[r] != nullptr) {
      copy_seen(weight, begin, end, 0, args.weights_n, args.weights[r]);
    }
  }
}

void attention_merge(float tile_max, float tile_sum, const float* tile_out, int64_t d_v, float* max,
                     float* sum, float* out) noexcept {
  if (tile_sum == 0) return;  // the tile showed nothing (one visible key alone gives 1)
  const float merged = std::max(*max, tile_max);
  const float keep = exp_f32(*max - merged);
  const float take = exp_f32(tile_max - merged);
  *max = merged;
  *sum = *sum * keep + tile_sum * take;
  for (int64_t i = 0; i < d_v; ++i) out[i] = out[i] * keep + tile_out[i] * take;
}

void attention_finish(float sum, int64_t d_v, float* out) noexcept {
  for (int64_t i = 0; i < d_v; ++i) out[i] /= sum;
}

void attention_top(const float* weights, const float* factor, int64_t tiles, int64_t k,
                   TopKeys& out) noexcept {
  std::fill_n(out.index, kMaxTopKeys, -1);
  std::fill_n(out.value, kMaxTopKeys, 0.0f);
  int32_t* const index = out.index;
  float* const value = out.value;
  for (int64_t p = 0; p < tiles * kTilePositions; ++p) {
    const float candidate = weights[p] * factor[p / kTilePositions];
    int64_t at = k;
    for (; at > 0 && candidate > value[at - 1]; --at) {
      if (at == k) continue;
      value[at] = value[at - 1];
      index[at] = index[at - 1];
    }
    if (at == k) continue;
    value[at] = candidate;
    index[at] = static_cast<int32_t>(p);
  }
}

}  // namespace cutaway::kernels::ref
