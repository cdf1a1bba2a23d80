#include "tests/kernels/kernels_testing.h"

#include <cstddef>
#include <cstdio>

#include "base/check.h"

namespace cutaway::kernels::testing {
namespace {

template <typename Block>
void put(std::vector<uint8_t>& bytes, const Block& block) {
  const auto* p = reinterpret_cast<const uint8_t*>(&block);
  bytes.insert(bytes.end(), p, p + sizeof(block));
}

}  // namespace

int64_t step_of_k(DType type) { return dtype_traits(type).block_elements; }

Halves halves_of(DType type) {
  switch (type) {
    case DType::kQ4_0:
    case DType::kQ8_0:
    case DType::kIQ4_XS:
      return {{0, 0}, 1};
    case DType::kQ4_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {{0, 2}, 2};
    case DType::kQ2_K:
      return {{offsetof(BlockQ2_K, d), offsetof(BlockQ2_K, dmin)}, 2};
    case DType::kQ3_K:
      return {{offsetof(BlockQ3_K, d), 0}, 1};
    case DType::kQ6_K:
      return {{offsetof(BlockQ6_K, d), 0}, 1};
    default:
      break;
  }
  CUTAWAY_CHECK(type == DType::kQ4_0);  // add the type
  return {};
}

std::vector<const KernelTable*> runnable_tables() {
  static const std::vector<const KernelTable*> tables = [] {
    std::vector<const KernelTable*> list = {ref_table()};
    for (const KernelTable* table : {avx2_table(), avx512_table(), neon_table()}) {
      if (table != nullptr) list.push_back(table);
    }
    const auto selection = select_table("");
    for (const TableChoice& choice : selection.value().choices) {
      if (!choice.available) {
        std::printf("not run here: table %s (%s)\n", choice.name.c_str(), choice.reason.c_str());
      }
    }
    return list;
  }();
  return tables;
}

bool emulated() { return std::getenv("CUTAWAY_EMULATED") != nullptr; }

namespace {

// Any bytes are a block of 256. Scales so that weights are about 1 in size.
void put_super(std::vector<uint8_t>& bytes, DType type, std::mt19937& random) {
  std::uniform_int_distribution<int> byte(0, 255);
  std::uniform_real_distribution<float> scale(-0.2f / 32, 0.2f / 32);
  const size_t begin = bytes.size();
  const auto size = static_cast<size_t>(dtype_traits(type).block_bytes);
  for (size_t i = 0; i < size; ++i) bytes.push_back(static_cast<uint8_t>(byte(random)));
  const Halves halves = halves_of(type);
  for (int i = 0; i < halves.count; ++i) {
    const uint16_t half = f32_to_f16(scale(random));
    std::memcpy(&bytes[begin + halves.offset[i]], &half, sizeof(half));
  }
}

}  // namespace

std::vector<uint8_t> random_weights(DType type, int64_t rows, int64_t cols, std::mt19937& random) {
  std::uniform_real_distribution<float> scale(-0.2f, 0.2f);
  std::normal_distribution<float> value(0, 1);
  std::uniform_int_distribution<int> byte(0, 255);
  std::vector<uint8_t> bytes;
  const int64_t blocks = rows * cols / dtype_traits(type).block_elements;
  for (int64_t b = 0; b < blocks; ++b) {
    switch (type) {
      case DType::kQ4_1: {
        BlockQ4_1 block{f32_to_f16(scale(random)), f32_to_f16(scale(random) * 8), {}};
        for (uint8_t& q : block.q) q = static_cast<uint8_t>(byte(random));
        put(bytes, block);
        break;
      }
      case DType::kQ4_0: {
        BlockQ4_0 block{f32_to_f16(scale(random)), {}};
        for (uint8_t& q : block.q) q = static_cast<uint8_t>(byte(random));
        put(bytes, block);
        break;
      }
      case DType::kQ8_0: {
        BlockQ8_0 block{f32_to_f16(scale(random) / 16), {}};
        for (int8_t& q : block.q) q = static_cast<int8_t>(byte(random) - 128);
        put(bytes, block);
        break;
      }
      case DType::kQ5_0: {
        BlockQ5_0 block{f32_to_f16(scale(random) / 2), {}, {}};
        for (uint8_t& q : block.qh) q = static_cast<uint8_t>(byte(random));
        for (uint8_t& q : block.q) q = static_cast<uint8_t>(byte(random));
        put(bytes, block);
        break;
      }
      case DType::kQ5_1: {
        BlockQ5_1 block{f32_to_f16(scale(random) / 2), f32_to_f16(scale(random) * 8), {}, {}};
        for (uint8_t& q : block.qh) q = static_cast<uint8_t>(byte(random));
        for (uint8_t& q : block.q) q = static_cast<uint8_t>(byte(random));
        put(bytes, block);
        break;
      }
      case DType::kIQ4_NL: {
        BlockIQ4_NL block{f32_to_f16(scale(random) / 16), {}};
        for (uint8_t& q : block.q) q = static_cast<uint8_t>(byte(random));
        put(bytes, block);
        break;
      }
      case DType::kMXFP4: {
        BlockMXFP4 block{static_cast<uint8_t>(122 + byte(random) % 6), {}};
        if (byte(random) < 8) block.e = static_cast<uint8_t>(byte(random) % 3);  // subnormal scales
        for (uint8_t& q : block.q) q = static_cast<uint8_t>(byte(random));
        put(bytes, block);
        break;
      }
      case DType::kF16:
        put(bytes, f32_to_f16(value(random)));
        break;
      case DType::kBF16:
        put(bytes, f32_to_bf16(value(random)));
        break;
      case DType::kF32:
        put(bytes, value(random));
        break;
      case DType::kQ2_K:
      case DType::kQ3_K:
      case DType::kQ4_K:
      case DType::kQ5_K:
      case DType::kQ6_K:
      case DType::kIQ4_XS:
        put_super(bytes, type, random);
        break;
      default:
        CUTAWAY_CHECK(false);
        break;
    }
  }
  return bytes;
}

Packed pack(std::span<const uint8_t> stored, DType type, int64_t rows, int64_t cols,
            std::span<const int32_t> row_order) {
  Packed packed;
  packed.matrix = {layout_for(type), rows, cols, nullptr};
  const size_t bytes = packed.matrix.bytes();
  // The end is where reading too far would be noticed, so nothing is added there but for alignment.
  packed.memory.reset(static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
  std::memset(packed.memory.get(), 0xFF, bytes);  // padding rows must be written by the packing
  packed.matrix.data = packed.memory.get();
  const int64_t bad = pack_groups(stored, type, rows, cols, row_order, 0, packed.matrix.groups(),
                                  packed.memory.get());
  CUTAWAY_CHECK(bad == -1);
  return packed;
}

}  // namespace cutaway::kernels::testing
