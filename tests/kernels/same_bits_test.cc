// The avx2, the avx512 and the neon table take the same steps, so an answer made on x86 has the
// bits of one made on ARM. No machine runs all: each is held against digests that the others meet
// too. Whoever changes the order of a sum in one of them changes the others, and the digest, with
// it.
#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/kernels_testing.h"

namespace cutaway::kernels {
namespace {

// Numbers that are the same everywhere: no library's distribution, no libm.
class Numbers {
 public:
  uint64_t bits() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  // A multiple of 2^−23 in [−1, 1).
  float next() {
    return static_cast<float>(static_cast<int32_t>(bits() >> 40) - (1 << 23)) * 0x1p-23f;
  }
  std::vector<float> floats(int64_t count) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& value : out) value = next();
    return out;
  }

 private:
  uint64_t state_ = 0x9E3779B97F4A7C15u;
};

// FNV-1a over the bits of floats.
uint64_t digest(const std::vector<float>& values) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ (bits >> shift & 0xFF)) * 0x100000001B3u;
    }
  }
  return hash;
}

std::vector<const KernelTable*> tables_of_the_same_bits() {
  std::vector<const KernelTable*> list;
  for (const KernelTable* table : {avx2_table(), avx512_table(), neon_table()}) {
    if (table != nullptr) list.push_back(table);
  }
  return list;
}

constexpr int64_t kRows = 37, kColumns = 7;
int64_t cols_of(DType type) { return testing::step_of_k(type) == kSuperK ? 768 : 160; }

std::vector<uint8_t> stored_weights(DType type, Numbers& numbers) {
  std::vector<uint8_t> bytes(dtype_bytes(type, static_cast<size_t>(kRows * cols_of(type))));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(numbers.bits() >> 56);
  const auto step = static_cast<size_t>(dtype_traits(type).block_bytes);
  for (size_t at = 0; at < bytes.size(); at += step) {
    const float value = numbers.next();
    const uint16_t half = f32_to_f16(value), brain = f32_to_bf16(value);
    if (type == DType::kF32) {
      std::memcpy(&bytes[at], &value, sizeof(value));
    } else if (testing::step_of_k(type) == kSuperK) {
      const testing::Halves halves = testing::halves_of(type);
      for (int i = 0; i < halves.count; ++i) {
        std::memcpy(&bytes[at + halves.offset[i]], &half, sizeof(half));
      }
    } else if (type == DType::kMXFP4) {
      bytes[at] = static_cast<uint8_t>(120 + (half & 7));
    } else {
      std::memcpy(&bytes[at], type == DType::kBF16 ? &brain : &half, sizeof(half));
    }
    if (type == DType::kQ4_1 || type == DType::kQ5_1) {
      std::memcpy(&bytes[at + 2], &half, sizeof(half));
    }
  }
  return bytes;
}

std::vector<float> product(const KernelTable& table, DType type, bool q8) {
  const int64_t cols = cols_of(type);
  Numbers numbers;
  const std::vector<uint8_t> stored = stored_weights(type, numbers);
  const testing::Packed packed = testing::pack(stored, type, kRows, cols);
  const std::vector<float> x = numbers.floats(cols * kColumns);
  std::vector<float> y(kRows * kColumns);
  const auto layout = static_cast<size_t>(packed.matrix.layout);
  const int64_t groups = packed.matrix.groups();
  if (!q8) {
    table.matmul_f32[layout](packed.matrix, 0, groups, x.data(), cols, kColumns, y.data(), kRows);
    return y;
  }
  std::vector<int8_t> q(x.size());
  std::vector<float> scale(x.size() / kBlockK), total(scale.size());
  std::vector<HalfSums> sum(scale.size());
  const Q8Output out = {q.data(), scale.data(), sum.data(), total.data(), cols};
  table.quantize_q8(x.data(), cols, kColumns, cols, 0, out);
  table.matmul_q8[layout](packed.matrix, 0, groups, out.view(), kColumns, y.data(), kRows);
  return y;
}

TEST(SameBitsOnX86AndArm, Products) {
  struct Case {
    DType type;
    bool q8;
    uint64_t expected;
  };
  constexpr Case kCases[] = {
      {DType::kQ4_1, true, 0x1F142DC007897578u},   {DType::kQ4_0, true, 0xAAAF302D60CE1ABCu},
      {DType::kQ8_0, true, 0x88BCDC95302878ADu},   {DType::kQ4_1, false, 0x2B4B333E35782C4Fu},
      {DType::kQ4_0, false, 0x4877A2B500AB0947u},  {DType::kQ8_0, false, 0x5FF44C7A554DC75Du},
      {DType::kF16, false, 0x90CD32A75D1101D7u},   {DType::kBF16, false, 0x0EA1AF0C854CA8BFu},
      {DType::kF32, false, 0xC39145EFF8A72D3Au},   {DType::kQ5_0, true, 0x53F9F12D6395326Eu},
      {DType::kQ2_K, true, 0x181E4F9038E0DEE6u},   {DType::kQ2_K, false, 0x94D4F0E54B2D0FCAu},
      {DType::kQ3_K, true, 0x3237D867B3BB0BB3u},   {DType::kQ3_K, false, 0x2090D5908206486Cu},
      {DType::kQ4_K, true, 0x5E1BA81D33E785D4u},   {DType::kQ4_K, false, 0xF0C76C9ADC79BF30u},
      {DType::kQ5_K, true, 0xDB378594C8C53C77u},   {DType::kQ5_K, false, 0x9F533B224053931Du},
      {DType::kQ6_K, true, 0xF4E5A3E095F1B7B9u},   {DType::kQ6_K, false, 0x6DCC4048D1DE3509u},
      {DType::kIQ4_XS, true, 0xECB7436A72747A71u}, {DType::kIQ4_XS, false, 0xF499D13030656535u},
      {DType::kQ5_1, true, 0x0241C651FAE94DA8u},   {DType::kIQ4_NL, true, 0x924100EAAAE32DE4u},
      {DType::kMXFP4, true, 0xEF75C20CE52E0EDAu},  {DType::kQ5_0, false, 0x70E39577409C3C7Cu},
      {DType::kQ5_1, false, 0xEFAE44941FF67C65u},  {DType::kIQ4_NL, false, 0xA1763334AF73CB28u},
      {DType::kMXFP4, false, 0xC31805F3862EAE7Bu},
  };
  const auto tables = tables_of_the_same_bits();
  if (tables.empty()) GTEST_SKIP() << "this machine can run neither avx2, avx512 nor neon";
  for (const KernelTable* table : tables) {
    for (const Case& test : kCases) {
      EXPECT_EQ(digest(product(*table, test.type, test.q8)), test.expected)
          << table->name << ' ' << dtype_name(test.type) << (test.q8 ? " q8" : " f32");
    }
  }
}

TEST(SameBitsOnX86AndArm, RowsOfNumbers) {
  const auto tables = tables_of_the_same_bits();
  if (tables.empty()) GTEST_SKIP() << "this machine can run neither avx2, avx512 nor neon";
  for (const KernelTable* table : tables) {
    Numbers numbers;
    constexpr int64_t kLength = 77;
    const std::vector<float> x = numbers.floats(kLength), w = numbers.floats(kLength);
    std::vector<float> out(kLength);
    out.push_back(table->rms_norm(x.data(), w.data(), 1e-5f, kLength, out.data()));
    EXPECT_EQ(digest(out), 0x1DB38F1D538B012Fu) << table->name << " rms_norm";
    out = x;
    table->rope(out.data(), w.data(), w.data() + 30, 60, false);
    table->rope(out.data(), w.data(), w.data() + 30, 60, true);
    EXPECT_EQ(digest(out), 0x5962030703879537u) << table->name << " rope";
    table->silu_mul(x.data(), w.data(), kLength, out.data());
    EXPECT_EQ(digest(out), 0x26C12474D884C5A7u) << table->name << " silu_mul";
    table->gelu_mul(x.data(), w.data(), kLength, out.data());
    EXPECT_EQ(digest(out), 0x4C783D502ED61C53u) << table->name << " gelu_mul";
    table->soft_cap(x.data(), 0.75f, kLength, out.data());
    EXPECT_EQ(digest(out), 0x5021DB25931EFE7Eu) << table->name << " soft_cap";
  }
}

// Two tiles of five query rows, merged.
std::vector<float> attended(const KernelTable& table, KvType type, float soft_cap) {
  constexpr int64_t kHead = 77, kQueries = 5;
  Numbers numbers;
  const auto bytes = static_cast<size_t>(kv_tile_bytes(type, kHead));
  const std::vector<float> queries = numbers.floats(kHead * kQueries);
  const float* q[kQueries];
  for (int64_t r = 0; r < kQueries; ++r) q[r] = queries.data() + r * kHead;
  constexpr int32_t kBegin[2][kQueries] = {{0, 0, 3, 17, 64}, {0, 0, 0, 0, 0}};
  constexpr int32_t kEnd[2][kQueries] = {{64, 64, 64, 64, 64}, {0, 9, 23, 41, 64}};
  std::vector<float> out(kHead * kQueries), sum(kQueries),
      max(kQueries, -std::numeric_limits<float>::infinity());
  for (int t = 0; t < 2; ++t) {
    std::vector<uint8_t> k(bytes), v(bytes);
    for (int64_t p = 0; p < kTilePositions; ++p) {
      table.store_key(type, numbers.floats(kHead).data(), kHead, p, k.data());
      table.store_value(type, numbers.floats(kHead).data(), kHead, p, v.data());
    }
    float tile_max[kQueries], tile_sum[kQueries];
    std::vector<float> tile_out(out.size());
    AttentionTileArgs args;
    args.tile = {type, k.data(), v.data()};
    args.d_k = args.d_v = kHead;
    args.n = kQueries;
    args.q = q;
    args.scale = 0.7f;
    args.soft_cap = soft_cap;
    args.begin = kBegin[t];
    args.end = kEnd[t];
    args.max = tile_max;
    args.sum = tile_sum;
    args.out = tile_out.data();
    table.attention_tile(args);
    for (int64_t r = 0; r < kQueries; ++r) {
      const auto row = static_cast<size_t>(r);
      table.attention_merge(tile_max[r], tile_sum[r], tile_out.data() + r * kHead, kHead, &max[row],
                            &sum[row], out.data() + r * kHead);
    }
  }
  for (int64_t r = 0; r < kQueries; ++r) {
    table.attention_finish(sum[static_cast<size_t>(r)], kHead, out.data() + r * kHead);
  }
  out.insert(out.end(), max.begin(), max.end());
  out.insert(out.end(), sum.begin(), sum.end());
  return out;
}

TEST(SameBitsOnX86AndArm, Attention) {
  struct Case {
    KvType type;
    float soft_cap;
    uint64_t expected;
  };
  constexpr Case kCases[] = {
      {KvType::kF32, 0, 0x9F0DD4EB94442F5Du}, {KvType::kF16, 0, 0x75C512D918FF9B54u},
      {KvType::kQ8, 0, 0x953B78E77F4EB9CFu},  {KvType::kQ4, 0, 0xD19CD6A657F256D1u},
      {KvType::kF16, 5, 0xD119BF75613B095Cu},
  };
  const auto tables = tables_of_the_same_bits();
  if (tables.empty()) GTEST_SKIP() << "this machine can run neither avx2, avx512 nor neon";
  for (const KernelTable* table : tables) {
    for (const Case& test : kCases) {
      EXPECT_EQ(digest(attended(*table, test.type, test.soft_cap)), test.expected)
          << table->name << ' ' << kv_type_name(test.type) << " cap " << test.soft_cap;
    }
  }
}

}  // namespace
}  // namespace cutaway::kernels
