// What the kernels store in a KV tile, of every type and table: where, which bits, and how far from
// what was given.
//
// Bound of the quantisation. With u = 2^−24, and f16 rounding a number a by at most
// h(a) = 2^−11·|a| + 2^−25 (the second term is the subnormals'):
//   kQ8: x / d is rounded once in f32 and then to an integer: an error of d·(1/2 + 128u), unless it
//     is held at ±127, because d was rounded down; then 127·(amax/127 − d) ≤ 127·h(amax/127) and
//     the f32 division.
//   kQ4: likewise d·(1/2 + 16u) and the difference's rounding u·|x − m|; held at 15 it is
//     15·h((max − m)/15) and three f32 roundings; held at 0 it is m − min ≤ h(min).
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>

#include "tests/kernels/kernels_testing.h"
#include "tests/kernels/kv_testing.h"

namespace cutaway::kernels {
namespace {

using testing::entry_index;
using testing::Guarded;
using testing::Side;
using testing::stored_element;
using testing::StoredElement;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kHeadSizes[] = {1, 3, 5, 8, 12, 13, 16, 17, 24, 31, 32, 33, 40, 64, 80, 129};

void store(const KernelTable& table, KvType type, Side side, const float* x, int64_t d, int64_t p,
           uint8_t* tile) {
  (side == Side::kKey ? table.store_key : table.store_value)(type, x, d, p, tile);
}

std::string text(const KernelTable& table, KvType type, Side side, int64_t d) {
  return std::string(table.name) + ' ' + kv_type_name(type) +
         (side == Side::kKey ? " keys" : " values") + " of " + std::to_string(d);
}

// Heads of finite elements: of every size that matters, about zero and far from it, constant, with
// both zeros, on the border between two integers, and too small for an f16 scale.
std::vector<std::vector<float>> finite_heads(int64_t d, std::mt19937& random) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<std::vector<float>> out;
  const auto add = [&](const auto& element) {
    std::vector<float> x;
    for (int64_t i = 0; i < d; ++i) x.push_back(element(i));
    out.push_back(std::move(x));
  };
  for (const float size : {1e-30f, 2e-8f, 1e-5f, 0.01f, 1.0f, 100.0f, 20000.0f}) {
    add([&](int64_t) { return normal(random) * size; });
    add([&](int64_t) { return normal(random) * size * 0.01f + size; });
    add([&](int64_t) { return normal(random) * size * 0.001f - size; });
    add([&](int64_t) { return size; });
  }
  add([](int64_t) { return 0.0f; });
  add([](int64_t) { return -0.0f; });
  add([](int64_t i) { return i % 3 == 0 ? -0.0f : 0.0f; });
  add([](int64_t i) { return i % 3 == 0 ? 0.0f : i % 3 == 1 ? -0.0f : 1.0f; });
  add([](int64_t i) { return i % 3 == 0 ? 0.0f : i % 3 == 1 ? -0.0f : -1.0f; });
  add([](int64_t i) { return i % 2 == 0 ? 1e-9f : -1e-9f; });  // min and scale round to ∓0 in f16
  add([](int64_t i) { return i % 32 == 0 ? 65504.0f : -65504.0f; });
  // Ties: the scale is exactly 1/8 (kQ8), 1/4 (kQ4).
  add([](int64_t i) {
    return i % 32 == 0 ? 127.0f / 8 : (static_cast<float>(i % 32 * 7 - 110) + 0.5f) / 8;
  });
  add([](int64_t i) {
    return i % 32 == 0 ? 0.0f : i % 32 == 1 ? 15.0f / 4 : (static_cast<float>(i % 15) + 0.5f) / 4;
  });
  return out;
}

double f16_error(double a) { return std::fabs(a) * 0x1p-11 + 0x1p-25; }

// The bound of the header comment for block `b` of x.
double quantisation_bound(KvType type, const std::vector<float>& x, int64_t b,
                          const StoredElement& stored) {
  constexpr double u = 0x1p-24;
  const auto first = x.begin() + b * 32;
  const auto last = x.begin() + std::min<int64_t>(b * 32 + 32, static_cast<int64_t>(x.size()));
  const auto [low, high] = std::minmax_element(first, last);
  const auto least = static_cast<double>(*low), most = static_cast<double>(*high);
  if (type == KvType::kQ8) {
    const double amax = std::max(std::fabs(least), std::fabs(most));
    const double held = 127 * f16_error(amax / 127) + amax * 2 * u;
    return std::max(stored.step * (0.5 + 128 * u), held);
  }
  const double range = std::fabs(most - stored.min);
  const double rounded = stored.step * (0.5 + 16 * u) + u * (range + std::fabs(least - stored.min));
  const double held = 15 * f16_error(range / 15) + 4 * u * range;
  return std::max({rounded, held, f16_error(least)});
}

void check_values(const KernelTable& table, KvType type, Side side, const std::vector<float>& x,
                  int64_t p, const uint8_t* tile) {
  const auto d = static_cast<int64_t>(x.size());
  std::vector<float> loaded(x.size());
  (side == Side::kKey ? load_key : load_value)(type, tile, d, p, loaded.data());
  for (int64_t i = 0; i < d; ++i) {
    const float given = x[static_cast<size_t>(i)];
    const StoredElement stored = stored_element(type, side, tile, d, p, i);
    // d·q has 18 bits at most, so that what is loaded is the stored value rounded once.
    ASSERT_EQ(loaded[static_cast<size_t>(i)], static_cast<float>(stored.value))
        << text(table, type, side, d) << " element " << i;
    if (type == KvType::kF32) {
      ASSERT_TRUE(testing::same_bits(loaded[static_cast<size_t>(i)], given));
    } else if (type == KvType::kF16) {
      ASSERT_EQ(loaded[static_cast<size_t>(i)], f16_to_f32(f32_to_f16(given)));
    } else {
      ASSERT_LE(std::fabs(stored.value - static_cast<double>(given)),
                quantisation_bound(type, x, i / 32, stored))
          << text(table, type, side, d) << " element " << i << ": " << given << " became "
          << stored.value << ", step " << stored.step << " q " << stored.q << " min " << stored.min;
    }
  }
}

TEST(KvLayout, StoredValuesAreWithinTheirBoundAndTheBitsAreThoseOfRef) {
  std::mt19937 random(21);
  for (const KernelTable* table : testing::runnable_tables()) {
    for (const KvType type : testing::kKvTypes) {
      for (const Side side : {Side::kKey, Side::kValue}) {
        for (const int64_t d : kHeadSizes) {
          for (const std::vector<float>& x : finite_heads(d, random)) {
            const int64_t p = static_cast<int64_t>(random() % kTilePositions);
            Guarded<uint8_t> tile(kv_tile_bytes(type, d), 4), expected(kv_tile_bytes(type, d), 8);
            store(*table, type, side, x.data(), d, p, tile.data());
            store(*ref_table(), type, side, x.data(), d, p, expected.data());
            ASSERT_TRUE(tile.intact()) << text(*table, type, side, d);
            ASSERT_EQ(0,
                      std::memcmp(tile.data(), expected.data(), static_cast<size_t>(tile.size())))
                << text(*table, type, side, d) << " of " << x[0] << ", " << x.back();
            ASSERT_NO_FATAL_FAILURE(check_values(*table, type, side, x, p, tile.data()));
          }
        }
      }
    }
  }
}

// Where the header says that elements and scales lie, and nowhere else.
TEST(KvLayout, StoresWriteOnlyTheirOwnBytes) {
  std::mt19937 random(8);
  std::normal_distribution<float> normal(0, 100);
  for (const KernelTable* table : testing::runnable_tables()) {
    for (const KvType type : testing::kKvTypes) {
      for (const Side side : {Side::kKey, Side::kValue}) {
        for (const int64_t d : kHeadSizes) {
          for (const int64_t p : {0, 1, 15, 16, 37, 63}) {
            std::vector<float> x(static_cast<size_t>(d));
            for (float& value : x) value = normal(random);
            Guarded<uint8_t> tile(kv_tile_bytes(type, d), 4);
            store(*table, type, side, x.data(), d, p, tile.data());
            ASSERT_TRUE(tile.intact());
            std::vector<bool> own(static_cast<size_t>(tile.size()));
            const auto owns = [&](int64_t base, int64_t index, int64_t size) {
              for (int64_t j = 0; j < size; ++j)
                own[static_cast<size_t>(base + index * size + j)] = true;
            };
            const int64_t blocks = (d + 31) / 32;
            if (type == KvType::kQ4) {
              for (int64_t j = 0; j < 16 * blocks; ++j) {
                owns(0, entry_index(side, p, j, 16 * blocks), 1);
              }
            } else {
              const int64_t size = type == KvType::kF32 ? 4 : type == KvType::kF16 ? 2 : 1;
              for (int64_t i = 0; i < d; ++i) owns(0, entry_index(side, p, i, d), size);
            }
            const int64_t arrays = type == KvType::kQ8 ? 1 : type == KvType::kQ4 ? 2 : 0;
            const int64_t elements = type == KvType::kQ8 ? 64 * d : 64 * 16 * blocks;
            for (int64_t a = 0; a < arrays; ++a) {
              for (int64_t b = 0; b < blocks; ++b) {
                owns(elements + a * 128 * blocks, entry_index(side, p, b, blocks), 2);
              }
            }
            for (int64_t i = 0; i < tile.size(); ++i) {
              if (!own[static_cast<size_t>(i)]) {
                ASSERT_TRUE(tile.untouched(i)) << text(*table, type, side, d) << " p " << p;
              }
            }
            ASSERT_NO_FATAL_FAILURE(check_values(*table, type, side, x, p, tile.data()));
          }
        }
      }
    }
  }
}

// A block that holds no number, or is beyond what f16 scales reach, reads as such and leaves the
// others alone; the bits are those of ref.
TEST(KvLayout, WhatIsNotFiniteShows) {
  for (const KernelTable* table : testing::runnable_tables()) {
    for (const KvType type : testing::kKvTypes) {
      for (const Side side : {Side::kKey, Side::kValue}) {
        for (const int64_t d : {1, 12, 32, 40, 64, 80}) {
          for (const float bad : {kNan, -kNan, kInfinity, -kInfinity, 3e38f, -3e38f, 1e7f}) {
            for (const int64_t at : {int64_t{0}, d / 2, d - 1}) {
              std::vector<float> x(static_cast<size_t>(d), 0.5f);
              x[static_cast<size_t>(at)] = bad;
              Guarded<uint8_t> tile(kv_tile_bytes(type, d), 4), expected(tile.size(), 4);
              store(*table, type, side, x.data(), d, 17, tile.data());
              store(*ref_table(), type, side, x.data(), d, 17, expected.data());
              ASSERT_EQ(0,
                        std::memcmp(tile.data(), expected.data(), static_cast<size_t>(tile.size())))
                  << text(*table, type, side, d) << ": " << bad << " at " << at;
              std::vector<float> loaded(x.size());
              (side == Side::kKey ? load_key : load_value)(type, tile.data(), d, 17, loaded.data());
              for (int64_t i = 0; i < d; ++i) {
                const float value = loaded[static_cast<size_t>(i)];
                const bool quantised = type == KvType::kQ8 || type == KvType::kQ4;
                if (quantised ? i / 32 != at / 32 : i != at) {
                  ASSERT_NEAR(value, 0.5f, 0.01f) << text(*table, type, side, d);
                } else if (std::isfinite(bad) && std::isfinite(value)) {
                  // f32 holds all of them; a 4-bit block of 1e7 and 0.5 has a step that f16 cannot.
                  ASSERT_TRUE(type == KvType::kF32 || std::fabs(value - bad) < 1e6f)
                      << text(*table, type, side, d) << ": " << bad << " became " << value;
                } else {
                  ASSERT_FALSE(std::isfinite(value)) << text(*table, type, side, d);
                }
              }
            }
          }
        }
      }
    }
  }
}

// Ties go to the even integer whatever rounding mode a caller has left behind (every other step is
// exact in these).
TEST(KvLayout, RoundingDoesNotDependOnTheMode) {
  std::vector<float> eighths(32), quarters(32);
  for (int i = 0; i < 32; ++i) {
    eighths[static_cast<size_t>(i)] =
        i == 0 ? 127.0f / 8 : (static_cast<float>(i * 7 - 110) + 0.5f) / 8;
    quarters[static_cast<size_t>(i)] = i == 0   ? 0.0f
                                       : i == 1 ? 15.0f / 4
                                                : (static_cast<float>(i % 15) + 0.5f) / 4;
  }
  for (const auto& [type, x] :
       {std::pair{KvType::kQ8, eighths}, std::pair{KvType::kQ4, quarters}}) {
    Guarded<uint8_t> nearest(kv_tile_bytes(type, 32), 4);
    ref_table()->store_value(type, x.data(), 32, 3, nearest.data());
    for (int64_t i = 2; i < 32; ++i) {
      const StoredElement stored = stored_element(type, Side::kValue, nearest.data(), 32, 3, i);
      ASSERT_EQ(stored.step, type == KvType::kQ8 ? 0.125 : 0.25);
      ASSERT_EQ(stored.q % 2, 0) << "a tie";
    }
    for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      Guarded<uint8_t> other(nearest.size(), 4);
      std::fesetround(mode);
      ref_table()->store_value(type, x.data(), 32, 3, other.data());
      std::fesetround(FE_TONEAREST);
      EXPECT_EQ(0, std::memcmp(nearest.data(), other.data(), static_cast<size_t>(other.size())))
          << kv_type_name(type);
    }
  }
}

// A page is given out as zeros: every position of it reads as zero.
TEST(KvLayout, ZeroedTilesReadAsZero) {
  for (const KvType type : testing::kKvTypes) {
    const std::vector<uint8_t> tile(static_cast<size_t>(kv_tile_bytes(type, 40)));
    std::vector<float> x(40, 1.0f);
    for (const int64_t p : {0, 31, 63}) {
      load_key(type, tile.data(), 40, p, x.data());
      for (const float value : x) EXPECT_EQ(value, 0.0f);
      load_value(type, tile.data(), 40, p, x.data());
      for (const float value : x) EXPECT_EQ(value, 0.0f);
    }
  }
}

TEST(KvLayout, BytesOfATile) {
  // 64 positions of 40 elements: two blocks each.
  EXPECT_EQ(kv_tile_bytes(KvType::kF32, 40), 64 * 40 * 4);
  EXPECT_EQ(kv_tile_bytes(KvType::kF16, 40), 64 * 40 * 2);
  EXPECT_EQ(kv_tile_bytes(KvType::kQ8, 40), 64 * (40 + 2 * 2));
  EXPECT_EQ(kv_tile_bytes(KvType::kQ4, 40), 64 * 2 * (16 + 2 + 2));
}

}  // namespace
}  // namespace cutaway::kernels
