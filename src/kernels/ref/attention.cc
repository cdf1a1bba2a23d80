#include <algorithm>
#include <limits>

#include "kernels/math.h"
#include "kernels/ref/ref.h"

namespace cutaway::kernels::ref {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float load_kv(KvType type, const void* memory, int64_t index) noexcept {
  if (type == KvType::kF32) return static_cast<const float*>(memory)[index];
  return f16_to_f32(static_cast<const uint16_t*>(memory)[index]);
}

void store_kv(KvType type, float value, void* memory, int64_t index) noexcept {
  if (type == KvType::kF32) {
    static_cast<float*>(memory)[index] = value;
  } else {
    static_cast<uint16_t*>(memory)[index] = f32_to_f16(value);
  }
}

int64_t key_index(int64_t p, int64_t i, int64_t d) noexcept {
  return p / kKeyLanes * d * kKeyLanes + i * kKeyLanes + p % kKeyLanes;
}

float score(const AttentionTileArgs& args, const float* q, int64_t p) noexcept {
  float dot = 0;
  for (int64_t i = 0; i < args.d_k; ++i) {
    dot += q[i] * load_kv(args.tile.type, args.tile.k, key_index(p, i, args.d_k));
  }
  dot *= args.scale;
  return args.soft_cap > 0 ? args.soft_cap * tanh_f32(dot / args.soft_cap) : dot;
}

}  // namespace

void store_key(KvType type, const float* key, int64_t d, int64_t p, void* k) noexcept {
  for (int64_t i = 0; i < d; ++i) store_kv(type, key[i], k, key_index(p, i, d));
}

void store_value(KvType type, const float* value, int64_t d, int64_t p, void* v) noexcept {
  for (int64_t i = 0; i < d; ++i) store_kv(type, value[i], v, p * d + i);
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
    float* out = args.out + r * args.d_v;
    std::fill_n(out, args.d_v, 0.0f);
    float sum = 0;
    for (int64_t p = begin; p < end; ++p) {
      weight[p] = exp_f32(weight[p] - max);
      sum += weight[p];
      for (int64_t i = 0; i < args.d_v; ++i) {
        out[i] += weight[p] * load_kv(args.tile.type, args.tile.v, p * args.d_v + i);
      }
    }
    args.max[r] = max;
    args.sum[r] = sum;
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

}  // namespace cutaway::kernels::ref
