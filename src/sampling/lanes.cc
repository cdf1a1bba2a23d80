#include "sampling/lanes.h"

#include <cstring>
#include <limits>

#include "base/cpu_features.h"
#include "kernels/exp_constants.h"
#include "trace/trace.h"

namespace cutaway::sampling {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Vectors of the compiler, as wide as a register of the target: 16 bytes, 32 (AVX2), 64 (AVX-512).
// Each element goes through the same operations in all three.
// (typedef: in a `using` of a template GCC loses the attribute.)
template <int kBytes>
struct Vectors {
  typedef float F __attribute__((vector_size(kBytes)));
  typedef int32_t I __attribute__((vector_size(kBytes)));
  typedef double D __attribute__((vector_size(kBytes)));
  typedef int64_t L __attribute__((vector_size(kBytes)));
  typedef uint64_t U __attribute__((vector_size(kBytes)));
  typedef float HalfF __attribute__((vector_size(kBytes / 2)));
  static constexpr size_t kFloats = kBytes / sizeof(float);
  static constexpr size_t kDoubles = kBytes / sizeof(double);
};

struct ScanArgs {
  const float* logits;
  size_t n;
  float* block_max;  // or null
  LogitScan* out;
};

// The largest of one block, and whether a NaN is in it (then the maximum means nothing).
template <int kBytes>
[[gnu::always_inline]] inline float block_maximum(const float* block,
                                                  typename Vectors<kBytes>::I& nan) {
  using V = Vectors<kBytes>;
  typename V::F max[2] = {typename V::F{} + kMinusInf, typename V::F{} + kMinusInf};
  for (size_t i = 0; i < kScanBlock; i += 2 * V::kFloats) {
    for (size_t j = 0; j < 2; ++j) {
      typename V::F x;
      std::memcpy(&x, block + i + j * V::kFloats, sizeof x);
      nan |= x != x;  // NOLINT(misc-redundant-expression): true for NaN alone
      max[j] = x > max[j] ? x : max[j];
    }
  }
  max[0] = max[1] > max[0] ? max[1] : max[0];
  float largest = max[0][0];
  for (size_t lane = 1; lane < V::kFloats; ++lane) {
    largest = max[0][lane] > largest ? max[0][lane] : largest;
  }
  return largest;
}

template <int kBytes>
[[gnu::always_inline]] inline void scan_body(const ScanArgs& args) {
  LogitScan best;
  best.max = kMinusInf;
  size_t best_block = 0;
  typename Vectors<kBytes>::I nan{};
  for (size_t begin = 0; begin < args.n; begin += kScanBlock) {
    float block = kMinusInf;
    if (args.n - begin >= kScanBlock) {
      block = block_maximum<kBytes>(args.logits + begin, nan);
    } else {
      float rest[kScanBlock];
      for (float& x : rest) x = kMinusInf;
      std::memcpy(rest, args.logits + begin, (args.n - begin) * sizeof(float));
      block = block_maximum<kBytes>(rest, nan);
    }
    if (args.block_max != nullptr) args.block_max[begin / kScanBlock] = block;
    if (block > best.max) {
      best.max = block;
      best_block = begin;
    }
  }
  for (size_t lane = 0; lane < Vectors<kBytes>::kFloats; ++lane) best.damaged |= nan[lane] != 0;
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

// Adds exp(x) and exp(x)·x of eight logits to eight lanes: kernels::exp_f64 step for step
// (sampling_test compares the bits), for x ≤ 0.
template <int kBytes>
[[gnu::always_inline]] inline void add_eight(const float* eight, const SumArgs& args,
                                             typename Vectors<kBytes>::D* sum,
                                             typename Vectors<kBytes>::D* weighted) {
  using V = Vectors<kBytes>;
  using D = typename V::D;
  using U = typename V::U;
  constexpr double kMagic = 0x1.8p52;  // adding it rounds to an integer, held in the low bits
  constexpr double kLowest = -746.0;
  const D magic = D{} + kMagic;
  for (size_t part = 0; part < 8 / V::kDoubles; ++part) {
    typename V::HalfF logit;
    std::memcpy(&logit, eight + part * V::kDoubles, sizeof logit);
    D x = (__builtin_convertvector(logit, D) - args.max) * args.inverse_temperature;
    const typename V::L vanishes = x < kLowest;
    x = vanishes ? D{} + kLowest : x;
    const D shifted = x * kernels::kLog2EF64 + magic;
    const D n = shifted - magic;
    const D r = (x - n * kernels::kLn2HighF64) - n * kernels::kLn2LowF64;
    D y;
    kernels::exp_series_f64(r, y);
    // 2^n in two factors, as there; −2048 < n ≤ 0, so that the shift may be a logical one.
    const U whole = reinterpret_cast<U>(shifted) - reinterpret_cast<U>(magic);
    const U half = ((whole + 2048) >> 1) - 1024;
    const U low = (half + 1023) << 52;
    const U high = (whole - half + 1023) << 52;
    D e = y * reinterpret_cast<D>(low) * reinterpret_cast<D>(high);
    e = vanishes ? D{} : e;
    sum[part] += e;
    weighted[part] += e * x;
  }
}

template <int kBytes>
[[gnu::always_inline]] inline void sum_body(const SumArgs& args) {
  using V = Vectors<kBytes>;
  constexpr size_t kParts = 8 / V::kDoubles;
  typename V::D sum[kParts] = {}, weighted[kParts] = {};
  size_t i = 0;
  for (; args.n - i >= 8; i += 8) add_eight<kBytes>(args.logits + i, args, sum, weighted);
  if (i < args.n) {
    float rest[8];
    for (float& x : rest) x = kMinusInf;
    std::memcpy(rest, args.logits + i, (args.n - i) * sizeof(float));
    add_eight<kBytes>(rest, args, sum, weighted);
  }
  const auto add_lanes = [](const typename V::D* v) {
    double lane[8];
    std::memcpy(lane, v, sizeof lane);
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) +
           ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  };
  args.out->sum = add_lanes(sum);
  args.out->weighted = add_lanes(weighted);
}

void scan_baseline(const ScanArgs& args) { scan_body<16>(args); }
void sum_baseline(const SumArgs& args) { sum_body<16>(args); }

#if defined(__x86_64__)
[[gnu::target("avx2")]] void scan_avx2(const ScanArgs& args) { scan_body<32>(args); }
[[gnu::target("avx2")]] void sum_avx2(const SumArgs& args) { sum_body<32>(args); }
[[gnu::target("avx512f,avx512dq")]] void sum_avx512(const SumArgs& args) { sum_body<64>(args); }
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
