#include "formats/quantize_pack.h"

#include <bit>
#include <cstring>

#include "base/check.h"

// tensor/dtype.h says which bit is whose.

namespace cutaway::formats {
namespace {

template <typename Block>
uint8_t* put(const Block& block, uint8_t* out) noexcept {
  std::memcpy(out, &block, sizeof block);
  return out + sizeof block;
}

void put_nibbles(const uint8_t* code, uint8_t (&q)[16]) noexcept {
  for (int j = 0; j < 16; ++j) {
    q[j] = static_cast<uint8_t>((code[j] & 15) | (code[j + 16] & 15) << 4);
  }
}

void put_fifth_bits(const uint8_t* code, uint8_t (&qh)[4]) noexcept {
  std::memset(qh, 0, sizeof qh);
  for (int i = 0; i < 32; ++i) qh[i / 8] |= static_cast<uint8_t>((code[i] >> 4) << (i % 8));
}

uint8_t* pack_block(DType type, float d, float m, const uint8_t* code, uint8_t* out) noexcept {
  switch (type) {
    case DType::kQ4_0: {
      BlockQ4_0 block{f32_to_f16(d), {}};
      put_nibbles(code, block.q);
      return put(block, out);
    }
    case DType::kQ4_1: {
      BlockQ4_1 block{f32_to_f16(d), f32_to_f16(m), {}};
      put_nibbles(code, block.q);
      return put(block, out);
    }
    case DType::kQ5_0: {
      BlockQ5_0 block{f32_to_f16(d), {}, {}};
      put_nibbles(code, block.q);
      put_fifth_bits(code, block.qh);
      return put(block, out);
    }
    case DType::kQ5_1: {
      BlockQ5_1 block{f32_to_f16(d), f32_to_f16(m), {}, {}};
      put_nibbles(code, block.q);
      put_fifth_bits(code, block.qh);
      return put(block, out);
    }
    case DType::kIQ4_NL: {
      BlockIQ4_NL block{f32_to_f16(d), {}};
      put_nibbles(code, block.q);
      return put(block, out);
    }
    default: {
      CUTAWAY_CHECK(type == DType::kMXFP4);
      // d = 2^(e − 128), whose exponent field is e − 1.
      const auto e = static_cast<uint8_t>(d > 0 ? (std::bit_cast<uint32_t>(d) >> 23) + 1 : 0);
      BlockMXFP4 block{e, {}};
      put_nibbles(code, block.q);
      return put(block, out);
    }
  }
}

// Eight scales and eight minima of 6 bits in 12 bytes.
void put_scale_mins(const CodedSuperBlock& coded, uint8_t (&to)[12]) noexcept {
  std::memset(to, 0, sizeof to);
  for (int j = 0; j < 8; ++j) {
    const int s = coded.scale[j], m = coded.min[j];
    if (j < 4) {
      to[j] |= static_cast<uint8_t>(s);
      to[j + 4] |= static_cast<uint8_t>(m);
    } else {
      to[j + 4] |= static_cast<uint8_t>((s & 15) | (m & 15) << 4);
      to[j - 4] |= static_cast<uint8_t>((s >> 4) << 6);
      to[j] |= static_cast<uint8_t>((m >> 4) << 6);
    }
  }
}

// Bits 2j and 2j + 1 of byte 32h + i: element 128h + 32j + i.
void put_pairs(const uint8_t* code, int shift, uint8_t (&q)[64]) noexcept {
  std::memset(q, 0, sizeof q);
  for (int i = 0; i < 256; ++i) {
    const int h = i / 128, j = i % 128 / 32;
    q[32 * h + i % 32] |= static_cast<uint8_t>((code[i] >> shift & 3) << (2 * j));
  }
}

void put_halves(const uint8_t* code, uint8_t (&q)[128]) noexcept {
  for (int h = 0; h < 4; ++h) {
    for (int i = 0; i < 32; ++i) {
      q[32 * h + i] =
          static_cast<uint8_t>((code[64 * h + i] & 15) | (code[64 * h + 32 + i] & 15) << 4);
    }
  }
}

// Bit j of byte i: bit `from` of element 32j + i.
void put_plane(const uint8_t* code, int from, uint8_t (&plane)[32]) noexcept {
  std::memset(plane, 0, sizeof plane);
  for (int i = 0; i < 256; ++i) {
    plane[i % 32] |= static_cast<uint8_t>((code[i] >> from & 1) << (i / 32));
  }
}

BlockQ2_K q2_k(const CodedSuperBlock& coded) noexcept {
  BlockQ2_K block{};
  for (int j = 0; j < 16; ++j) {
    block.scales[j] = static_cast<uint8_t>(coded.scale[j] | coded.min[j] << 4);
  }
  put_pairs(coded.code, 0, block.q);
  block.d = f32_to_f16(coded.d);
  block.dmin = f32_to_f16(coded.m);
  return block;
}

BlockQ3_K q3_k(const CodedSuperBlock& coded) noexcept {
  BlockQ3_K block{};
  for (int j = 0; j < 16; ++j) {
    const int s = coded.scale[j] + 32;
    block.scales[j % 8] |= static_cast<uint8_t>((s & 15) << (j < 8 ? 0 : 4));
    block.scales[8 + j % 4] |= static_cast<uint8_t>((s >> 4) << (2 * (j / 4)));
  }
  put_pairs(coded.code, 0, block.q);
  put_plane(coded.code, 2, block.hmask);
  block.d = f32_to_f16(coded.d);
  return block;
}

BlockQ4_K q4_k(const CodedSuperBlock& coded) noexcept {
  BlockQ4_K block{f32_to_f16(coded.d), f32_to_f16(coded.m), {}, {}};
  put_scale_mins(coded, block.scales);
  put_halves(coded.code, block.q);
  return block;
}

BlockQ5_K q5_k(const CodedSuperBlock& coded) noexcept {
  BlockQ5_K block{f32_to_f16(coded.d), f32_to_f16(coded.m), {}, {}, {}};
  put_scale_mins(coded, block.scales);
  put_halves(coded.code, block.q);
  put_plane(coded.code, 4, block.qh);
  return block;
}

BlockQ6_K q6_k(const CodedSuperBlock& coded) noexcept {
  BlockQ6_K block{};
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < 64; ++i) {
      const uint8_t* code = coded.code + 128 * h;
      block.ql[64 * h + i] = static_cast<uint8_t>((code[i] & 15) | (code[64 + i] & 15) << 4);
    }
  }
  put_pairs(coded.code, 4, block.qh);
  for (int j = 0; j < 16; ++j) block.scales[j] = static_cast<int8_t>(coded.scale[j]);
  block.d = f32_to_f16(coded.d);
  return block;
}

BlockIQ4_XS iq4_xs(const CodedSuperBlock& coded) noexcept {
  BlockIQ4_XS block{};
  block.d = f32_to_f16(coded.d);
  for (int j = 0; j < 8; ++j) {
    const int s = coded.scale[j] + 32;
    block.scales_l[j / 2] |= static_cast<uint8_t>((s & 15) << (4 * (j % 2)));
    block.scales_h = static_cast<uint16_t>(block.scales_h | (s >> 4) << (2 * j));
    for (int i = 0; i < 16; ++i) {
      const uint8_t* code = coded.code + 32 * j;
      block.q[16 * j + i] = static_cast<uint8_t>((code[i] & 15) | (code[i + 16] & 15) << 4);
    }
  }
  return block;
}

}  // namespace

uint8_t* pack_blocks(DType type, const CodedBlocks& coded, int blocks, uint8_t* out) noexcept {
  for (int b = 0; b < blocks; ++b) {
    out = pack_block(type, coded.d[b], coded.m[b], coded.code[b], out);
  }
  return out;
}

uint8_t* pack_super_block(DType type, const CodedSuperBlock& coded, uint8_t* out) noexcept {
  switch (type) {
    case DType::kQ2_K:
      return put(q2_k(coded), out);
    case DType::kQ3_K:
      return put(q3_k(coded), out);
    case DType::kQ4_K:
      return put(q4_k(coded), out);
    case DType::kQ5_K:
      return put(q5_k(coded), out);
    case DType::kQ6_K:
      return put(q6_k(coded), out);
    default:
      CUTAWAY_CHECK(type == DType::kIQ4_XS);
      return put(iq4_xs(coded), out);
  }
}

}  // namespace cutaway::formats
