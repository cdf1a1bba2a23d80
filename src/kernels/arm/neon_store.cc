// Writing keys and values into a tile, with the bits of ref.
#include <limits>

#include "kernels/arm/neon_kv.h"

namespace cutaway::kernels::neon {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr int kBlockVectors = kKvBlock / 4;

CUTAWAY_INLINE uint16_t to_half(float x) noexcept {
  return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x))), 0);
}
CUTAWAY_INLINE float from_half(uint16_t x) noexcept {
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x))), 0);
}

// A block of n ≤ 32 elements. Lanes past it repeat its first element, so that its extremes are
// theirs too.
struct Block {
  Block(const float* from, int64_t n) noexcept {
    float padded[kKvBlock];
    for (int64_t i = 0; i < kKvBlock; ++i) padded[i] = from[i < n ? i : 0];
    float32x4_t least = vld1q_f32(padded), most = least;
    uint32x4_t finite = vdupq_n_u32(~0u);
#pragma GCC unroll 16
    for (int v = 0; v < kBlockVectors; ++v) {
      x[v] = vld1q_f32(padded + 4 * v);
      least = vminq_f32(least, x[v]);
      most = vmaxq_f32(most, x[v]);
      finite = vandq_u32(finite, vcleq_f32(vabsq_f32(x[v]), vdupq_n_f32(kLargest)));
    }
    all_finite = vminvq_u32(finite) != 0;
    low = vminvq_f32(least);
    high = vmaxvq_f32(most);
  }
  float32x4_t x[kBlockVectors];
  float low, high;
  bool all_finite;
};

// Integers nearest to (x − min) / scale, ties to even, held between low and high; 0 where no scale
// can be divided by. As bytes.
CUTAWAY_INLINE void quantise(const Block& block, float min, float scale, int32_t low, int32_t high,
                             int8_t (&q)[kKvBlock]) noexcept {
  if (!(scale > 0 && scale <= kLargest)) {
    std::memset(q, 0, sizeof(q));
    return;
  }
#pragma GCC unroll 16
  for (int v = 0; v < kBlockVectors; v += 2) {
    int32x4_t whole[2];
#pragma GCC unroll 16
    for (int h = 0; h < 2; ++h) {
      const float32x4_t steps =
          vdivq_f32(vsubq_f32(block.x[v + h], vdupq_n_f32(min)), vdupq_n_f32(scale));
      whole[h] = vcvtnq_s32_f32(steps);  // saturates
      whole[h] = vminq_s32(vmaxq_s32(whole[h], vdupq_n_s32(low)), vdupq_n_s32(high));
    }
    const int16x8_t both = vcombine_s16(vmovn_s32(whole[0]), vmovn_s32(whole[1]));
    vst1_s8(q + 4 * v, vmovn_s16(both));
  }
}

CUTAWAY_INLINE void quantise_q8(const float* x, int64_t n, int8_t (&q)[kKvBlock],
                                uint16_t* d) noexcept {
  const Block block(x, n);
  const float most = (block.high > -block.low ? block.high : -block.low) + 0.0f;  // no −0
  *d = to_half(block.all_finite ? most / 127.0f : kNan);
  quantise(block, 0, from_half(*d), -127, 127, q);
}

CUTAWAY_INLINE void quantise_q4(const float* x, int64_t n, uint8_t (&q)[kHalfBlock], uint16_t* d,
                                uint16_t* m) noexcept {
  const Block block(x, n);
  const float low = block.low + 0.0f, high = block.high + 0.0f;  // no −0, as in ref
  *m = to_half(block.all_finite ? low : 0.0f);
  const float min = from_half(*m);
  const float range = high - min;
  *d = to_half(block.all_finite ? (range > 0 ? range : 0.0f) / 15.0f : kNan);
  int8_t steps[kKvBlock];
  quantise(block, min, from_half(*d), 0, 15, steps);
  for (int64_t i = n; i < kKvBlock; ++i) steps[i] = 0;
  const uint8x16_t highs = vreinterpretq_u8_s8(vld1q_s8(steps + kHalfBlock));
  vst1q_u8(q, vsliq_n_u8(vreinterpretq_u8_s8(vld1q_s8(steps)), highs, 4));
}

// Where one position's elements lie in an array of a tile: from first(per_position) on, step apart.
struct Place {
  int64_t p, step;
  int64_t first(int64_t per_position) const noexcept {
    return step == 1 ? p * per_position : p / kKeyLanes * per_position * kKeyLanes + p % kKeyLanes;
  }
};

void store_quantised(KvType type, const float* x, int64_t d, const Place& place,
                     void* tile) noexcept {
  const int64_t blocks = kv_blocks(d);
  const int64_t per_position = type == KvType::kQ8 ? d : blocks * kHalfBlock;
  auto* bytes = static_cast<uint8_t*>(tile);
  auto* scales = reinterpret_cast<uint16_t*>(bytes + kv_element_bytes(type, d));
  bytes += place.first(per_position);
  scales += place.first(blocks);
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t n = d - b * kKvBlock < kKvBlock ? d - b * kKvBlock : kKvBlock;
    uint16_t* scale = scales + b * place.step;
    int64_t count = n;
    int8_t q8[kKvBlock];
    uint8_t q[kKvBlock];
    if (type == KvType::kQ8) {
      quantise_q8(x + b * kKvBlock, n, q8, scale);
      std::memcpy(q, q8, sizeof(q));
    } else {
      uint8_t q4[kHalfBlock];
      quantise_q4(x + b * kKvBlock, n, q4, scale, scale + kTilePositions * blocks);
      std::memcpy(q, q4, sizeof(q4));
      count = kHalfBlock;
    }
    for (int64_t i = 0; i < count; ++i) bytes[i * place.step] = q[i];
    bytes += count * place.step;
  }
}

void store_plain(KvType type, const float* x, int64_t d, const Place& place, void* tile) noexcept {
  const int64_t first = place.first(d);
  if (type == KvType::kF32) {
    float* to = static_cast<float*>(tile) + first;
    for (int64_t i = 0; i < d; ++i) to[i * place.step] = x[i];
    return;
  }
  uint16_t* to = static_cast<uint16_t*>(tile) + first;
  for (int64_t i = 0; i < d; i += 4) {
    uint16_t bits[4];
    vst1_u16(bits, vreinterpret_u16_f16(vcvt_f16_f32(load_first(x + i, d - i))));
    const int64_t count = d - i < 4 ? d - i : 4;
    for (int64_t j = 0; j < count; ++j) to[(i + j) * place.step] = bits[j];
  }
}

void store(KvType type, const float* x, int64_t d, const Place& place, void* tile) noexcept {
  if (is_quantised(type)) {
    store_quantised(type, x, d, place, tile);
  } else {
    store_plain(type, x, d, place, tile);
  }
}

}  // namespace

void store_key(KvType type, const float* key, int64_t d, int64_t p, void* k) noexcept {
  store(type, key, d, {p, kKeyLanes}, k);
}

void store_value(KvType type, const float* value, int64_t d, int64_t p, void* v) noexcept {
  store(type, value, d, {p, 1}, v);
}

}  // namespace cutaway::kernels::neon
