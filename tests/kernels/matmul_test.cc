// Every table × layout × columns × odd rows × odd K × misalignment, against double precision.
//
// Bounds. u = 2^−24, γ_n = n·u / (1 − n·u).
// f32: an output is K products added one after another, each product and each sum rounded (a fused
//   step rounds once): |ŷ − y| ≤ γ_{K+1} · Σ_k |w_k|·|x_k|.
// q8: per block b of B the integer sum is exact and converts exactly (|isum| < 2^24). The term
//   d·scale·isum is rounded twice, m·(scale·sum) twice, and then takes part in at most 2·B
//   additions: |ŷ − y| ≤ γ_{2·B+2} · Σ_b (|d·scale·isum_b| + |m·scale·sum_b|). Where each half of a
//   block has a scale there are up to three terms: γ_{3·B+2}. The products of a super-block's d and
//   its small scales are exact.
// A product that is subnormal loses up to 2^−150 instead: d·scale, of which isum times, and what
// comes of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/dequantize.h"
#include "tests/kernels/kernels_testing.h"

namespace cutaway::kernels {
namespace {

using testing::Guarded;

constexpr int64_t kColumns[] = {1, 2, 3, 4, 5, 7, 8, 16, 33, 512};
constexpr int64_t kMostColumns = 512;
// The last one is many groups of 16, and a part of one.
std::vector<int64_t> row_counts(Layout layout) {
  return {1, 15, 16, 17, testing::emulated() ? 66 : is_super(layout) ? 177 : 577};
}
constexpr int64_t kStrideGap = 3;

std::vector<int64_t> depths(Layout layout) {
  if (testing::emulated()) {
    if (is_super(layout)) return {256, 768};
    if (is_blocked(layout)) return {32, 96, 704};
    return {1, 7, 33, 577};
  }
  if (is_super(layout)) return {256, 768, 1536};
  if (is_blocked(layout)) return {32, 64, 96, 576, 1536};
  return {1, 2, 7, 31, 33, 129, 577};
}

// Columns that are compared with double precision; the others are compared bitwise.
bool is_sampled(int64_t column) { return column < 36 || column % 97 == 0 || column == 511; }

// Activations of kMostColumns tokens, 4 bytes (floats) and 1 byte (int8) off any alignment.
struct Inputs {
  Guarded<float> x;
  Guarded<int8_t> q;
  Guarded<float> scale;
  Guarded<HalfSums> sum;
  Guarded<float> total;
  int64_t x_stride;
  Q8Activations q8;

  Inputs(int64_t cols, std::mt19937& random)
      : x((cols + kStrideGap) * kMostColumns, 4),
        q(cols * kMostColumns, 1),
        scale(cols / kBlockK * kMostColumns, 4),
        sum(cols / kBlockK * kMostColumns, 4),
        total(cols / kBlockK * kMostColumns, 4),
        x_stride(cols + kStrideGap) {
    std::normal_distribution<float> value(0, 1);
    for (int64_t i = 0; i < x.size(); ++i) x[i] = value(random);
    if (cols % kBlockK == 0) {
      ref_table()->quantize_q8(x.data(), x_stride, kMostColumns, cols, 0,
                               {q.data(), scale.data(), sum.data(), total.data(), cols});
    }
    q8 = {q.data(), scale.data(), sum.data(), total.data(), cols};
  }
};

enum class Kind { kQ8, kF32 };

void run(const KernelTable& table, Kind kind, const PackedMatrix& w, int64_t group_begin,
         int64_t group_end, Inputs& in, int64_t first_column, int64_t n, float* y,
         int64_t y_stride) {
  const auto layout = static_cast<size_t>(w.layout);
  y += group_begin * kGroupRows;
  if (kind == Kind::kF32) {
    table.matmul_f32[layout](w, group_begin, group_end, in.x.data() + first_column * in.x_stride,
                             in.x_stride, n, y, y_stride);
    return;
  }
  const int64_t blocks = w.cols / kBlockK;
  const Q8Activations x = {
      in.q.data() + first_column * w.cols, in.scale.data() + first_column * blocks,
      in.sum.data() + first_column * blocks, in.total.data() + first_column * blocks, w.cols};
  table.matmul_q8[layout](w, group_begin, group_end, x, n, y, y_stride);
}

struct Expected {
  double value;
  double bound;
};

// What file bytes say about block b of a row, in exact arithmetic.
struct StoredBlock {
  double d[2] = {}, m[2] = {};  // of each half
  int q[kBlockK];
};

void set_d(StoredBlock& block, float d) { block.d[0] = block.d[1] = static_cast<double>(d); }
void set_m(StoredBlock& block, float m) { block.m[0] = block.m[1] = static_cast<double>(m); }

// Sub-block `part` (32 elements) of a block of 256 elements.
StoredBlock stored_part(DType type, const uint8_t* bytes, int part) {
  StoredBlock out;
  const auto read = [&](auto& block) { std::memcpy(&block, bytes, sizeof(block)); };
  const auto fill = [&](const auto& block, auto* at) {
    for (int k = 0; k < kBlockK; ++k) out.q[k] = at(block, part * 32 + k);
  };
  const auto d_and_min = [&](const auto& block) {
    const ScaleMin both = k_scale_min(block.scales, part);
    set_d(out, f16_to_f32(block.d) * static_cast<float>(both.scale));
    set_m(out, -f16_to_f32(block.dmin) * static_cast<float>(both.min));
  };
  const auto d_of_halves = [&](const auto& block, auto scale) {
    for (int h = 0; h < 2; ++h) {
      out.d[h] = static_cast<double>(f16_to_f32(block.d)) * scale(2 * part + h);
    }
  };
  if (type == DType::kQ2_K) {
    BlockQ2_K block;
    read(block);
    fill(block, q2_k_at);
    d_of_halves(block, [&](int s) { return block.scales[s] & 15; });
    for (int h = 0; h < 2; ++h) {
      out.m[h] = -static_cast<double>(f16_to_f32(block.dmin)) * (block.scales[2 * part + h] >> 4);
    }
  } else if (type == DType::kQ3_K) {
    BlockQ3_K block;
    read(block);
    fill(block, q3_k_at);
    d_of_halves(block, [&](int s) { return q3_k_scale(block, s); });
  } else if (type == DType::kQ4_K) {
    BlockQ4_K block;
    read(block);
    fill(block, q4_k_at);
    d_and_min(block);
  } else if (type == DType::kQ5_K) {
    BlockQ5_K block;
    read(block);
    fill(block, q5_k_at);
    d_and_min(block);
  } else if (type == DType::kQ6_K) {
    BlockQ6_K block;
    read(block);
    fill(block, q6_k_at);
    d_of_halves(block, [&](int s) { return block.scales[s]; });
  } else {
    BlockIQ4_XS block;
    read(block);
    for (int k = 0; k < kBlockK; ++k) {
      const uint8_t byte = block.q[16 * part + k % 16];
      out.q[k] = kIQ4Values[k < 16 ? byte & 15 : byte >> 4];
    }
    set_d(out, f16_to_f32(block.d) * static_cast<float>(iq4_xs_scale(block, part)));
  }
  return out;
}

// Where the parts of a type's blocks lie, from the format's definition: −1 for none.
struct Parts {
  int64_t m, fifth, q;
  int offset;
  const int8_t* values;
};
Parts parts_of(DType type) {
  switch (type) {
    case DType::kQ4_1:
      return {2, -1, 4, 0, nullptr};
    case DType::kQ4_0:
      return {-1, -1, 2, 8, nullptr};
    case DType::kQ5_1:
      return {2, 4, 8, 0, nullptr};
    case DType::kQ5_0:
      return {-1, 2, 6, 16, nullptr};
    case DType::kIQ4_NL:
      return {-1, -1, 2, 0, kIQ4Values};
    case DType::kMXFP4:
      return {-1, -1, 1, 0, kMXFP4Values};
    default:
      return {-1, -1, 2, 0, nullptr};  // Q8_0
  }
}

StoredBlock stored_block(DType type, const uint8_t* row, int64_t b) {
  if (testing::step_of_k(type) == kSuperK) {
    return stored_part(type, row + b / 8 * dtype_traits(type).block_bytes, static_cast<int>(b % 8));
  }
  StoredBlock out;
  const uint8_t* block = row + b * dtype_traits(type).block_bytes;
  const Parts parts = parts_of(type);
  const auto half_at = [&](int64_t at) {
    uint16_t bits;
    std::memcpy(&bits, block + at, sizeof(bits));
    return static_cast<double>(f16_to_f32(bits));
  };
  out.d[0] = out.d[1] = type == DType::kMXFP4 ? std::ldexp(1.0, block[0] - 128) : half_at(0);
  if (parts.m >= 0) out.m[0] = out.m[1] = half_at(parts.m);
  const uint8_t* q = block + parts.q;
  for (int k = 0; k < kBlockK; ++k) {
    if (type == DType::kQ8_0) {
      out.q[k] = static_cast<int8_t>(q[k]);
      continue;
    }
    int value = k < 16 ? q[k] & 15 : q[k - 16] >> 4;
    if (parts.fifth >= 0) value |= (block[parts.fifth + k / 8] >> (k % 8) & 1) << 4;
    out.q[k] = parts.values != nullptr ? parts.values[value] : value - parts.offset;
  }
  return out;
}

Expected expected_q8(const std::vector<StoredBlock>& row, Inputs& in, int64_t column) {
  const auto blocks = static_cast<int64_t>(row.size());
  Expected out = {0, 0};
  double magnitude = 0, lost = 0;
  bool halves = false;
  for (int64_t b = 0; b < blocks; ++b) {
    const StoredBlock& block = row[static_cast<size_t>(b)];
    const int8_t* q = in.q.data() + column * blocks * kBlockK + b * kBlockK;
    const auto scale = static_cast<double>(in.scale[column * blocks + b]);
    halves |= block.d[0] != block.d[1] || block.m[0] != block.m[1];
    // One step may cover both halves: then its own size counts, which is at most the sum of theirs.
    for (int64_t h = 0; h < 2; ++h) {
      int64_t isum = 0, sum = 0;
      for (int64_t k = 16 * h; k < 16 * h + 16; ++k) {
        isum += block.q[k] * q[k];
        sum += q[k];
      }
      const double product = block.d[h] * scale * static_cast<double>(isum);
      const double minimum = block.m[h] * scale * static_cast<double>(sum);
      out.value += product + minimum;
      lost += 0x1p-150 * (std::fabs(static_cast<double>(isum)) + 1);
      magnitude += std::fabs(product) + std::fabs(minimum);
    }
  }
  const double steps = halves ? 3 : 2;
  out.bound = testing::gamma_f32(steps * static_cast<double>(blocks) + 2) * magnitude + lost;
  return out;
}

Expected expected_f32(const std::vector<float>& row, Inputs& in, int64_t column) {
  Expected out = {0, 0};
  double magnitude = 0;
  const float* x = in.x.data() + column * in.x_stride;
  for (size_t k = 0; k < row.size(); ++k) {
    const double product = static_cast<double>(row[k]) * static_cast<double>(x[k]);
    out.value += product;
    magnitude += std::fabs(product);
  }
  out.bound = testing::gamma_f32(static_cast<double>(row.size()) + 1) * magnitude +
              0x1p-150 * static_cast<double>(row.size());
  return out;
}

struct Case {
  DType type;
  Kind kind;
  int64_t rows, cols;
  std::string text(const KernelTable& table) const {
    return std::string(table.name) + (kind == Kind::kQ8 ? " q8 " : " f32 ") + dtype_name(type) +
           " rows " + std::to_string(rows) + " K " + std::to_string(cols);
  }
};

// Expected values of the sampled columns, by [column][row].
std::vector<std::vector<Expected>> expect(const Case& test, const std::vector<uint8_t>& stored,
                                          Inputs& in) {
  std::vector<std::vector<Expected>> out(kMostColumns);
  const size_t row_bytes = dtype_bytes(test.type, static_cast<size_t>(test.cols));
  std::vector<float> values(static_cast<size_t>(test.cols));
  for (int64_t r = 0; r < test.rows; ++r) {
    const uint8_t* row = stored.data() + static_cast<size_t>(r) * row_bytes;
    std::vector<StoredBlock> blocks;
    if (test.kind == Kind::kQ8) {
      for (int64_t b = 0; b < test.cols / kBlockK; ++b) {
        blocks.push_back(stored_block(test.type, row, b));
      }
    } else {
      dequantize(test.type, row, test.cols, values.data());
    }
    for (int64_t c = 0; c < kMostColumns; ++c) {
      if (!is_sampled(c)) continue;
      out[static_cast<size_t>(c)].push_back(test.kind == Kind::kQ8 ? expected_q8(blocks, in, c)
                                                                   : expected_f32(values, in, c));
    }
  }
  return out;
}

// Calls with n columns must give, bit for bit, the first n columns of `all`; nothing else is
// written.
void check_columns(const KernelTable& table, const Case& test, const PackedMatrix& w, Inputs& in,
                   Guarded<float>& all, int64_t y_stride) {
  for (const int64_t n : kColumns) {
    if (n == kMostColumns) continue;
    const int64_t first = n % 5;  // not only columns from 0 on
    Guarded<float> y((n - 1) * y_stride + test.rows, 4);
    run(table, test.kind, w, 0, w.groups(), in, first, n, y.data(), y_stride);
    ASSERT_TRUE(y.intact()) << test.text(table) << " n " << n;
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t r = 0; r < test.rows; ++r) {
        ASSERT_TRUE(testing::same_bits(y[c * y_stride + r], all[(first + c) * y_stride + r]))
            << test.text(table) << " n " << n << " column " << c << " row " << r;
      }
      for (int64_t r = test.rows; r < y_stride && c + 1 < n; ++r) {
        ASSERT_TRUE(y.untouched(c * y_stride + r)) << test.text(table) << " n " << n;
      }
    }
  }
  // Each column of the widest call alone.
  for (int64_t c = 0; c < kMostColumns; c += test.rows * test.cols > 20000 ? 41 : 1) {
    Guarded<float> y(test.rows, 4);
    run(table, test.kind, w, 0, w.groups(), in, c, 1, y.data(), y_stride);
    ASSERT_TRUE(y.intact()) << test.text(table);
    for (int64_t r = 0; r < test.rows; ++r) {
      ASSERT_TRUE(testing::same_bits(y[r], all[c * y_stride + r]))
          << test.text(table) << " column " << c << " row " << r;
    }
  }
}

// Any division of the groups among calls gives the bits of one call, and leaves other rows alone.
void check_groups(const KernelTable& table, const Case& test, const PackedMatrix& w, Inputs& in,
                  Guarded<float>& all, int64_t y_stride) {
  for (const int64_t n : {int64_t{1}, int64_t{3}, int64_t{9}}) {
    for (int64_t step = 1; step <= w.groups(); step = step * 3 + 2) {
      for (int64_t g = 0; g < w.groups(); g += step) {
        const int64_t end = std::min(w.groups(), g + step);
        Guarded<float> y((n - 1) * y_stride + test.rows, 4);
        run(table, test.kind, w, g, end, in, 0, n, y.data(), y_stride);
        ASSERT_TRUE(y.intact()) << test.text(table);
        for (int64_t c = 0; c < n; ++c) {
          for (int64_t r = 0; r < test.rows; ++r) {
            if (r >= g * kGroupRows && r < end * kGroupRows) {
              ASSERT_TRUE(testing::same_bits(y[c * y_stride + r], all[c * y_stride + r]))
                  << test.text(table) << " groups " << g << "…" << end << " row " << r;
            } else {
              ASSERT_TRUE(y.untouched(c * y_stride + r)) << test.text(table);
            }
          }
        }
      }
    }
  }
}

class Matmul : public ::testing::TestWithParam<std::tuple<DType, Kind>> {};

TEST_P(Matmul, WithinBoundAndBitwiseIndependent) {
  const auto [type, kind] = GetParam();
  std::mt19937 random(20);
  double worst = 0;
  for (const int64_t cols : depths(layout_for(type))) {
    Inputs in(cols, random);
    for (const int64_t rows : row_counts(layout_for(type))) {
      const Case test = {type, kind, rows, cols};
      const std::vector<uint8_t> stored = testing::random_weights(type, rows, cols, random);
      const testing::Packed packed = testing::pack(stored, type, rows, cols);
      const auto expected = expect(test, stored, in);
      const int64_t y_stride = rows + kStrideGap;
      for (const KernelTable* table : testing::runnable_tables()) {
        Guarded<float> y((kMostColumns - 1) * y_stride + rows, 4);
        run(*table, kind, packed.matrix, 0, packed.matrix.groups(), in, 0, kMostColumns, y.data(),
            y_stride);
        ASSERT_TRUE(y.intact()) << test.text(*table);
        for (int64_t c = 0; c < kMostColumns; ++c) {
          if (!is_sampled(c)) continue;
          for (int64_t r = 0; r < rows; ++r) {
            const Expected& e = expected[static_cast<size_t>(c)][static_cast<size_t>(r)];
            const double error = std::fabs(static_cast<double>(y[c * y_stride + r]) - e.value);
            ASSERT_LE(error, e.bound) << test.text(*table) << " column " << c << " row " << r;
            if (e.bound > 0) worst = std::max(worst, error / e.bound);
          }
        }
        ASSERT_NO_FATAL_FAILURE(check_columns(*table, test, packed.matrix, in, y, y_stride));
        ASSERT_NO_FATAL_FAILURE(check_groups(*table, test, packed.matrix, in, y, y_stride));
      }
    }
  }
  EXPECT_GT(worst, 0.001) << "the bound is so loose that it would hide a fault";
  RecordProperty("largest_share_of_the_bound", std::to_string(worst));
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<DType, Kind>>& info) {
  return std::string(dtype_name(std::get<0>(info.param))) +
         (std::get<1>(info.param) == Kind::kQ8 ? "_q8" : "_f32");
}

INSTANTIATE_TEST_SUITE_P(F32, Matmul,
                         ::testing::Combine(::testing::ValuesIn(testing::kWeightTypes),
                                            ::testing::Values(Kind::kF32)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Q8, Matmul,
                         ::testing::Combine(::testing::ValuesIn(testing::kQuantisedTypes),
                                            ::testing::Values(Kind::kQ8)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Q8Super, Matmul,
                         ::testing::Combine(::testing::ValuesIn(testing::kSuperTypes),
                                            ::testing::Values(Kind::kQ8)),
                         name_of);

// A block whose elements are all `q` (all of them, as the type stores them), with scale and
// minimum 1.
std::vector<uint8_t> block_of_equal(DType type, int q) {
  std::vector<uint8_t> block(static_cast<size_t>(dtype_traits(type).block_bytes));
  const Parts parts = parts_of(type);
  const uint16_t one = f32_to_f16(1.0f);
  std::memcpy(block.data(), &one, sizeof(one));
  if (type == DType::kMXFP4) block[0] = 128;  // 2^(128 − 128)
  if (parts.m >= 0) std::memcpy(block.data() + parts.m, &one, sizeof(one));
  if (parts.fifth >= 0) std::memset(block.data() + parts.fifth, q > 15 ? 0xFF : 0, 4);
  const int byte = type == DType::kQ8_0 ? q : (q & 15) | (q & 15) << 4;
  std::memset(block.data() + parts.q, byte, block.size() - static_cast<size_t>(parts.q));
  return block;
}

// The largest sums that 16-bit steps can meet: every weight and every activation at its end. With
// d = scale = 1 the results are integers below 2^24, so they are exact.
TEST(MatmulExtremes, IntegerSumsNeverOverflow) {
  constexpr int64_t kCols = 64;
  for (const DType type : testing::kQuantisedTypes) {
    const Parts parts = parts_of(type);
    const int least = type == DType::kQ8_0 ? -128 : 0;
    const int most = type == DType::kQ8_0 ? 127 : parts.fifth >= 0 ? 31 : 15;
    for (int weight = least; weight <= most; ++weight) {
      const std::vector<uint8_t> block = block_of_equal(type, weight);
      std::vector<uint8_t> stored;
      for (int64_t b = 0; b < 16 * kCols / kBlockK; ++b) {
        stored.insert(stored.end(), block.begin(), block.end());
      }
      const testing::Packed packed = testing::pack(stored, type, 16, kCols);
      for (const int value : {127, -127}) {
        const std::vector<int8_t> q(kCols * 5, static_cast<int8_t>(value));
        const std::vector<float> scale(kCols / kBlockK * 5, 1.0f);
        const auto half = static_cast<int16_t>(16 * value);
        const std::vector<HalfSums> sum(kCols / kBlockK * 5, {half, half});
        const std::vector<float> total(sum.size(), static_cast<float>(32 * value));
        const int level = parts.values != nullptr ? parts.values[weight] : weight - parts.offset;
        const auto expected =
            static_cast<float>(kCols * level * value + (parts.m >= 0 ? kCols * value : 0));
        for (const KernelTable* table : testing::runnable_tables()) {
          std::vector<float> y(16 * 5);
          table->matmul_q8[static_cast<size_t>(packed.matrix.layout)](
              packed.matrix, 0, 1, {q.data(), scale.data(), sum.data(), total.data(), kCols}, 5,
              y.data(), 16);
          for (const float got : y) {
            ASSERT_EQ(got, expected) << table->name << ' ' << dtype_name(type) << ' ' << weight;
          }
        }
      }
    }
  }
}

// Likewise where scales are small integers: all of them 1, and the minima too.
TEST(MatmulExtremes, IntegerSumsOfSuperBlocksNeverOverflow) {
  struct Scales {
    DType type;
    size_t offset;
    std::vector<uint8_t> bytes;
  };
  const std::vector<uint8_t> ones(16, 0x01), pairs(16, 0x11);
  const std::vector<uint8_t> with_minima = {1, 1, 1, 1, 1, 1, 1, 1, 0x11, 0x11, 0x11, 0x11};
  const Scales all[] = {
      {DType::kQ2_K, 0, pairs},
      {DType::kQ3_K, 96, {0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0xAA, 0xAA, 0xAA, 0xAA}},
      {DType::kQ4_K, 4, with_minima},
      {DType::kQ5_K, 4, with_minima},
      {DType::kQ6_K, 192, ones},
      {DType::kIQ4_XS, 2, {0xAA, 0xAA, 0x11, 0x11, 0x11, 0x11}}};
  for (const Scales& scales : all) {
    const auto block_bytes = static_cast<size_t>(dtype_traits(scales.type).block_bytes);
    for (const int fill : {0x00, 0xFF, 0x0F, 0x80}) {
      std::vector<uint8_t> block(block_bytes, static_cast<uint8_t>(fill)), stored;
      std::copy(scales.bytes.begin(), scales.bytes.end(),
                block.begin() + static_cast<int64_t>(scales.offset));
      const testing::Halves halves = testing::halves_of(scales.type);
      const uint16_t one = f32_to_f16(1.0f);
      for (int i = 0; i < halves.count; ++i) std::memcpy(&block[halves.offset[i]], &one, 2);
      for (int r = 0; r < 16; ++r) stored.insert(stored.end(), block.begin(), block.end());
      const testing::Packed packed = testing::pack(stored, scales.type, 16, kSuperK);
      for (const int value : {127, -127}) {
        double exact = 0;
        for (int64_t b = 0; b < 8; ++b) {
          const StoredBlock part = stored_block(scales.type, block.data(), b);
          for (size_t k = 0; k < 32; ++k)
            exact += (part.d[k / 16] * part.q[k] + part.m[k / 16]) * value;
        }
        const std::vector<int8_t> q(kSuperK * 5, static_cast<int8_t>(value));
        const std::vector<float> scale(8 * 5, 1.0f);
        const auto half = static_cast<int16_t>(16 * value);
        const std::vector<HalfSums> sum(8 * 5, {half, half});
        const std::vector<float> total(8 * 5, static_cast<float>(32 * value));
        for (const KernelTable* table : testing::runnable_tables()) {
          std::vector<float> y(16 * 5);
          table->matmul_q8[static_cast<size_t>(packed.matrix.layout)](
              packed.matrix, 0, 1, {q.data(), scale.data(), sum.data(), total.data(), kSuperK}, 5,
              y.data(), 16);
          for (const float got : y) {
            ASSERT_EQ(static_cast<double>(got), exact)
                << table->name << ' ' << dtype_name(scales.type) << ' ' << fill;
          }
        }
      }
    }
  }
}

// The x86 tables take the same steps in the same order, so a file gives the same products on a
// processor with AVX-512 and on one without.
TEST(MatmulTables, Avx512GivesTheBitsOfAvx2) {
  const KernelTable *avx2 = avx2_table(), *avx512 = avx512_table();
  if (avx512 == nullptr) GTEST_SKIP() << "this machine cannot run the avx512 table";
  std::mt19937 random(21);
  for (const DType type : testing::kWeightTypes) {
    for (const int64_t cols : {32, 160, 4096, 768}) {
      if (cols % testing::step_of_k(type) != 0) continue;
      constexpr int64_t kRowsHere = 45, kN = 23;
      Inputs in(cols, random);
      const std::vector<uint8_t> stored = testing::random_weights(type, kRowsHere, cols, random);
      const testing::Packed packed = testing::pack(stored, type, kRowsHere, cols);
      for (const Kind kind : {Kind::kQ8, Kind::kF32}) {
        if (kind == Kind::kQ8 && !is_blocked(packed.matrix.layout)) continue;
        Guarded<float> a(kN * kRowsHere, 4), b(kN * kRowsHere, 4);
        run(*avx2, kind, packed.matrix, 0, packed.matrix.groups(), in, 0, kN, a.data(), kRowsHere);
        run(*avx512, kind, packed.matrix, 0, packed.matrix.groups(), in, 0, kN, b.data(),
            kRowsHere);
        for (int64_t i = 0; i < a.size(); ++i) {
          ASSERT_TRUE(testing::same_bits(a[i], b[i]))
              << dtype_name(type) << (kind == Kind::kQ8 ? " q8" : " f32") << " K " << cols
              << " column " << i / kRowsHere << " row " << i % kRowsHere;
        }
      }
    }
  }
}

// Some columns of a matrix where they lie, against the same columns dequantised and packed by
// themselves.
TEST(MatmulTables, ColumnsOfAMatrixAreAMatrix) {
  std::mt19937 random(22);
  for (const DType type : testing::kWeightTypes) {
    const int64_t step = testing::step_of_k(type);
    const int64_t unit = step == 1 ? 7 : step, cols = 4 * unit;
    constexpr int64_t kRowsHere = 77;
    const std::vector<uint8_t> stored = testing::random_weights(type, kRowsHere, cols, random);
    const testing::Packed packed = testing::pack(stored, type, kRowsHere, cols);
    EXPECT_FALSE(step > 1 && columns_of(packed.matrix, step / 2, step).has_value());
    EXPECT_FALSE(step > 1 && columns_of(packed.matrix, 0, step / 2).has_value());
    for (const int64_t first : {int64_t{0}, unit, 3 * unit}) {
      const int64_t width = first == unit ? 2 * unit : unit;
      const auto part = columns_of(packed.matrix, first, width);
      ASSERT_TRUE(part.has_value());
      std::vector<float> row(static_cast<size_t>(cols)), values;
      for (int64_t r = 0; r < kRowsHere; ++r) {
        unpack_row(packed.matrix, r, row.data());
        values.insert(values.end(), row.begin() + first, row.begin() + first + width);
      }
      const std::vector<uint8_t> bytes(
          reinterpret_cast<const uint8_t*>(values.data()),
          reinterpret_cast<const uint8_t*>(values.data() + values.size()));
      const testing::Packed alone = testing::pack(bytes, DType::kF32, kRowsHere, width);
      Inputs in(width, random);
      for (const KernelTable* table : testing::runnable_tables()) {
        for (const int64_t n : {1, 6, 23, 130}) {
          Guarded<float> a(n * kRowsHere, 4), b(n * kRowsHere, 4);
          run(*table, Kind::kF32, *part, 0, part->groups(), in, 0, n, a.data(), kRowsHere);
          run(*table, Kind::kF32, alone.matrix, 0, part->groups(), in, 0, n, b.data(), kRowsHere);
          for (int64_t i = 0; i < a.size(); ++i) {
            ASSERT_TRUE(testing::same_bits(a[i], b[i]))
                << table->name << ' ' << dtype_name(type) << " columns " << first << " to "
                << first + width << ", output " << i << " of " << n;
          }
        }
      }
    }
  }
}

TEST(MatmulTables, EveryEntryIsFilled) {
  for (const KernelTable* table : testing::runnable_tables()) {
    for (size_t i = 0; i < kLayoutCount; ++i) {
      EXPECT_NE(table->matmul_f32[i], nullptr) << table->name << ' ' << i;
      EXPECT_EQ(table->matmul_q8[i] != nullptr, is_blocked(static_cast<Layout>(i)))
          << table->name << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace cutaway::kernels
