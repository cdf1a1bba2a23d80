#include "sampling/lanes.h"

#include <cstring>
#include <limits>

#include "base/cpu_features.h"
#include "trace/trace.h"

namespace cutaway::sampling {
namespace {

// Vectors of the compiler: eight doubles are four SSE2, two AVX2 or one AVX-512 register, and each
// element goes through the same operations in all three.
using F16 = float __attribute__((vector_size(64)));
using I16 = int32_t __attribute__((vector_size(64)));
using F8 = float __attribute__((vector_size(32)));
using D8 = double __attribute__((vector_size(64)));
using I8 = int64_t __attribute__((vector_size(64)));
using U8 = uint64_t __attribute__((vector_size(64)));

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

struct ScanArgs {
  const float* logits;
  size_t n;
  float* block_max;  // or null
  LogitScan* out;
};

[[gnu::always_inline]] inline void scan_body(const ScanArgs& args) {
  LogitScan best;
  best.max = kMinusInf;
  size_t best_block = 0;
  I16 nan{};
  for (size_t begin = 0; begin < args.n; begin += kScanBlock) {
    const size_t length = args.n - begin < kScanBlock ? args.n - begin : kScanBlock;
    F16 max = F16{} + kMinusInf;
    for (size_t i = 0; i < length; i += 16) {
      F16 x = F16{} + kMinusInf;
      if (length - i >= 16) {
        std::memcpy(&x, args.logits + begin + i, sizeof x);
      } else {
        std::memcpy(&x, args.logits + begin + i, (length - i) * sizeof(float));
      }
      nan |= x != x;
      max = x > max ? x : max;
    }
    float block = max[0];
    for (int lane = 1; lane < 16; ++lane) block = max[lane] > block ? max[lane] : block;
    if (args.block_max != nullptr) args.block_max[begin / kScanBlock] = block;
    if (block > best.max) {
      best.max = block;
      best_block = begin;
    }
  }
  for (int lane = 0; lane < 16; ++lane) best.damaged |= nan[lane] != 0;
  best.damaged |= best.max == std::numeric_limits<float>::infinity();
  for (size_t i = best_block; i < args.n && best.max > kMinusInf; ++i) {
    if (args.logits[i] == best.max) {
      best.argmax = static_cast<int32_t>(i);
      break;
    }
  }
  *args.out = best;
}

struct SumArgs {
  const float* logits;
  size_t n;
  double max;
  double inverse_temperature;
  ExpSums* out;
};

// kernels::exp_f64 on eight lanes, step for step (sampling_test compares the bits), for x ≤ 0.
[[gnu::always_inline]] inline void sum_body(const SumArgs& args) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42feep-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr double kMagic = 0x1.8p52;  // adding it rounds to an integer, held in the low bits
  constexpr double kLowest = -746.0;
  const D8 magic = D8{} + kMagic;
  D8 sum{}, weighted{};
  for (size_t i = 0; i < args.n; i += 8) {
    F8 logit = F8{} + kMinusInf;
    if (args.n - i >= 8) {
      std::memcpy(&logit, args.logits + i, sizeof logit);
    } else {
      std::memcpy(&logit, args.logits + i, (args.n - i) * sizeof(float));
    }
    D8 x = (__builtin_convertvector(logit, D8) - args.max) * args.inverse_temperature;
    const I8 vanishes = x < kLowest;
    x = vanishes ? D8{} + kLowest : x;
    const D8 shifted = x * kLog2E + magic;
    const D8 n = shifted - magic;
    const D8 r = (x - n * kLn2High) - n * kLn2Low;
    D8 p = D8{} + 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    const D8 y = 1.0 + (r + r * r * p);
    // 2^n in two factors, as there; −2048 < n ≤ 0, so that the shift may be a logical one.
    const U8 whole = reinterpret_cast<U8>(shifted) - reinterpret_cast<U8>(magic);
    const U8 half = ((whole + 2048) >> 1) - 1024;
    const U8 low = (half + 1023) << 52;
    const U8 high = (whole - half + 1023) << 52;
    D8 e = y * reinterpret_cast<D8>(low) * reinterpret_cast<D8>(high);
    e = vanishes ? D8{} : e;
    sum += e;
    weighted += e * x;
  }
  const auto add_lanes = [](const D8& v) {
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
  };
  args.out->sum = add_lanes(sum);
  args.out->weighted = add_lanes(weighted);
}

void scan_baseline(const ScanArgs& args) { scan_body(args); }
void sum_baseline(const SumArgs& args) { sum_body(args); }

#if defined(__x86_64__)
[[gnu::target("avx2")]] void scan_avx2(const ScanArgs& args) { scan_body(args); }
[[gnu::target("avx2")]] void sum_avx2(const SumArgs& args) { sum_body(args); }
[[gnu::target("avx512f,avx512dq")]] void sum_avx512(const SumArgs& args) { sum_body(args); }
#endif

using ScanFn = void (*)(const ScanArgs&);
using SumFn = void (*)(const SumArgs&);

ScanFn choose_scan() {
#if defined(__x86_64__)
  if (cpu_features().avx2) return scan_avx2;
#endif
  return scan_baseline;
}

SumFn choose_sum() {
#if defined(__x86_64__)
  if (cpu_features().avx512f && cpu_features().avx512dq) return sum_avx512;
  if (cpu_features().avx2) return sum_avx2;
#endif
  return sum_baseline;
}

}  // namespace

LogitScan scan_logits(std::span<const float> logits, std::vector<float>* block_max) {
  CUTAWAY_SPAN(span, "sampling::scan_logits", "n", logits.size());
  static const ScanFn scan = choose_scan();
  LogitScan out;
  if (block_max != nullptr) block_max->resize((logits.size() + kScanBlock - 1) / kScanBlock);
  scan({logits.data(), logits.size(), block_max != nullptr ? block_max->data() : nullptr, &out});
  CUTAWAY_OUT(span, "max", out.max, "argmax", out.argmax, "damaged", out.damaged);
  return out;
}

ExpSums exp_sums(std::span<const float> logits, float max, double inverse_temperature) {
  CUTAWAY_SPAN(span, "sampling::exp_sums", "n", logits.size(), "max", max, "inverse_temperature",
               inverse_temperature);
  static const SumFn sum = choose_sum();
  ExpSums out;
  sum({logits.data(), logits.size(), static_cast<double>(max), inverse_temperature, &out});
  CUTAWAY_OUT(span, "sum", out.sum, "weighted", out.weighted);
  return out;
}

}  // namespace cutaway::sampling
