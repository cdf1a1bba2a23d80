// The matrix kernels at real shapes, beside what the machine can do at most: int8 multiply-adds,
// f32 fma's, bytes read from memory. One thread.
//
//   kernels_bench --benchmark_filter='q8/.*' --benchmark_repetitions=5
//
// n = 512 (prefill) reports GOPS (2 · rows · cols · n a call). n = 1 (decode) reports GB/s of
// weights, over copies that together exceed the caches. CUTAWAY_FORCE_ISA chooses the table.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "kernels/probe.h"
#include "kernels/table.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cutaway::kernels {
namespace {

constexpr size_t kBeyondCaches = size_t{256} << 20;

struct Free {
  void operator()(uint8_t* p) const { std::free(p); }
};
using Memory = std::unique_ptr<uint8_t, Free>;

Memory allocate(size_t bytes) {
  return Memory(static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
}

// `copies` equal packed matrices in one allocation. The weights are random; their scales are small.
struct Weights {
  Memory memory;
  std::vector<PackedMatrix> matrices;

  Weights(DType type, int64_t rows, int64_t cols, size_t total_bytes) {
    std::mt19937 random(1);
    const DTypeTraits& traits = dtype_traits(type);
    std::vector<uint8_t> stored(dtype_bytes(type, static_cast<size_t>(rows * cols)));
    for (uint8_t& byte : stored) byte = static_cast<uint8_t>(random());
    for (size_t i = 0; i < stored.size(); i += static_cast<size_t>(traits.block_bytes)) {
      const uint16_t scale = f32_to_f16(0.01f);
      const float value = static_cast<float>(random() % 2001) / 1000 - 1;
      const uint16_t half = f32_to_f16(value), brain = f32_to_bf16(value);
      switch (type) {
        case DType::kF32:
          std::memcpy(&stored[i], &value, 4);
          break;
        case DType::kF16:
          std::memcpy(&stored[i], &half, 2);
          break;
        case DType::kBF16:
          std::memcpy(&stored[i], &brain, 2);
          break;
        case DType::kMXFP4:
          stored[i] = 122;
          break;
        case DType::kQ6_K:
          std::memcpy(&stored[i + 208], &scale, 2);
          break;
        case DType::kQ3_K:
          std::memcpy(&stored[i + 108], &scale, 2);
          break;
        case DType::kQ2_K:
          std::memcpy(&stored[i + 80], &scale, 2);
          std::memcpy(&stored[i + 82], &scale, 2);
          break;
        case DType::kQ4_K:
        case DType::kQ5_K:
        case DType::kQ4_1:
        case DType::kQ5_1:
          std::memcpy(&stored[i + 2], &scale, 2);
          [[fallthrough]];
        default:
          std::memcpy(&stored[i], &scale, 2);
      }
    }
    PackedMatrix matrix{layout_for(type), rows, cols, nullptr};
    const size_t copies = std::max<size_t>(1, total_bytes / matrix.bytes());
    memory = allocate(matrix.bytes() * copies);
    pack_groups(stored, type, rows, cols, {}, 0, matrix.groups(), memory.get());
    for (size_t i = 0; i < copies; ++i) {
      matrix.data = memory.get() + i * matrix.bytes();
      if (i > 0) std::memcpy(memory.get() + i * matrix.bytes(), memory.get(), matrix.bytes());
      matrices.push_back(matrix);
    }
  }
};

void report(benchmark::State& state, const PackedMatrix& w, int64_t n) {
  const auto calls = static_cast<double>(state.iterations());
  const double ops = 2.0 * static_cast<double>(w.rows * w.cols * n);
  state.counters["GOPS"] = benchmark::Counter(ops * calls * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(w.bytes()) * calls * 1e-9,
                                              benchmark::Counter::kIsRate);
}

std::vector<float> activations(int64_t count) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(random);
  return x;
}

void q8(benchmark::State& state, const KernelTable* table, DType type, int64_t rows, int64_t cols,
        int64_t n) {
  const Weights weights(type, rows, cols, n == 1 ? kBeyondCaches : 0);
  const std::vector<float> x = activations(cols * n);
  std::vector<int8_t> q(x.size());
  std::vector<float> scale(x.size() / 32), y(static_cast<size_t>(rows * n));
  std::vector<HalfSums> sum(scale.size());
  std::vector<float> total(scale.size());
  const Q8Output out = {q.data(), scale.data(), sum.data(), total.data(), cols};
  table->quantize_q8(x.data(), cols, n, cols, 0, out);
  const PackedMatrix& first = weights.matrices[0];
  const auto kernel = table->matmul_q8[static_cast<size_t>(first.layout)];
  size_t i = 0;
  for (auto _ : state) {
    const PackedMatrix& w = weights.matrices[i++ % weights.matrices.size()];
    kernel(w, 0, w.groups(), out.view(), n, y.data(), rows);
    benchmark::ClobberMemory();
  }
  report(state, first, n);
}

void f32(benchmark::State& state, const KernelTable* table, DType type, int64_t rows, int64_t cols,
         int64_t n) {
  const Weights weights(type, rows, cols, n == 1 ? kBeyondCaches : 0);
  const std::vector<float> x = activations(cols * n);
  std::vector<float> y(static_cast<size_t>(rows * n));
  const PackedMatrix& first = weights.matrices[0];
  const auto kernel = table->matmul_f32[static_cast<size_t>(first.layout)];
  size_t i = 0;
  for (auto _ : state) {
    const PackedMatrix& w = weights.matrices[i++ % weights.matrices.size()];
    kernel(w, 0, w.groups(), x.data(), cols, n, y.data(), rows);
    benchmark::ClobberMemory();
  }
  report(state, first, n);
}

// Attention of `rows` queries (SmolLM2 has 3 heads to a KV head) over whole tiles, d = 64, which
// a cache holds, or memory. GOPS counts the products with keys and values, GB/s what is read.
void attention(benchmark::State& state, const KernelTable* table, KvType type, int64_t rows,
               bool beyond_caches) {
  constexpr int64_t kD = 64;
  const auto bytes = static_cast<size_t>(kv_tile_bytes(type, kD));
  const int64_t tiles = beyond_caches ? static_cast<int64_t>(kBeyondCaches / (2 * bytes)) : 16;
  const size_t all = static_cast<size_t>(tiles) * bytes;
  const Memory k = allocate(all), v = allocate(all);
  const std::vector<float> x = activations(kD * std::max(rows, kTilePositions));
  for (int64_t t = 0; t < tiles; ++t) {
    for (int64_t p = 0; p < kTilePositions; ++p) {
      table->store_key(type, x.data() + p * kD, kD, p, k.get() + static_cast<size_t>(t) * bytes);
      table->store_value(type, x.data() + p * kD, kD, p, v.get() + static_cast<size_t>(t) * bytes);
    }
  }
  const auto n = static_cast<size_t>(rows);
  std::vector<const float*> q(n);
  for (size_t r = 0; r < n; ++r) q[r] = x.data() + r * kD;
  const std::vector<int32_t> begin(n, 0), end(n, kTilePositions);
  std::vector<float> max(n), sum(n), out(n * kD);
  AttentionTileArgs args;
  args.d_k = args.d_v = kD;
  args.n = rows;
  args.q = q.data();
  args.scale = 0.125f;
  args.begin = begin.data();
  args.end = end.data();
  args.max = max.data();
  args.sum = sum.data();
  args.out = out.data();
  const auto tile = [&](int64_t t) -> KvTile {
    const auto at = static_cast<size_t>(t) * bytes;
    return {type, k.get() + at, v.get() + at};
  };
  for (auto _ : state) {
    for (int64_t t = 0; t < tiles; ++t) {
      args.tile = tile(t);
      args.next = tile((t + 1) % tiles);
      table->attention_tile(args);
      benchmark::ClobberMemory();
    }
  }
  if (beyond_caches) {
    const double read = 2.0 * static_cast<double>(bytes) * static_cast<double>(tiles);
    state.counters["GB/s"] = benchmark::Counter(
        read * static_cast<double>(state.iterations()) * 1e-9, benchmark::Counter::kIsRate);
  }
  const double ops = 4.0 * static_cast<double>(kD * kTilePositions * tiles * rows);
  state.counters["GOPS"] = benchmark::Counter(ops * static_cast<double>(state.iterations()) * 1e-9,
                                              benchmark::Counter::kIsRate);
}

// The most that the table's instructions can multiply and add.
void arithmetic(benchmark::State& state, int64_t (*probe)(int64_t) noexcept) {
  int64_t ops = 0;
  for (auto _ : state) ops += probe(1000);
  state.counters["GOPS"] =
      benchmark::Counter(static_cast<double>(ops) * 1e-9, benchmark::Counter::kIsRate);
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) void read_bandwidth(benchmark::State& state) {
  const Memory memory = allocate(kBeyondCaches);
  std::memset(memory.get(), 1, kBeyondCaches);
  for (auto _ : state) {
    __m256i acc[4] = {};
    for (size_t i = 0; i < kBeyondCaches; i += 128) {
      for (size_t j = 0; j < 4; ++j) {
        const auto* p = reinterpret_cast<const __m256i*>(memory.get() + i + 32 * j);
        acc[j] = _mm256_add_epi8(acc[j], _mm256_load_si256(p));
      }
    }
    for (auto& a : acc) benchmark::DoNotOptimize(a);
  }
  state.counters["GB/s"] = benchmark::Counter(
      static_cast<double>(kBeyondCaches) * 1e-9 * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}

#endif

void register_probes(const KernelTable& table) {
  const ArithmeticProbe& probe = arithmetic_probe(table);
  benchmark::RegisterBenchmark("probe/int8", arithmetic, probe.int8);
  benchmark::RegisterBenchmark("probe/f32", arithmetic, probe.f32);
#if defined(__x86_64__)
  if (cpu_features().avx2) benchmark::RegisterBenchmark("probe/read", read_bandwidth);
#endif
}

void register_all(const KernelTable* table) {
  register_probes(*table);
  struct Run {
    int64_t rows, cols;
    std::vector<DType> q8, f32;
  };
  const std::vector<DType> quantised = {DType::kQ4_1, DType::kQ4_0,   DType::kQ8_0, DType::kQ5_0,
                                        DType::kQ5_1, DType::kIQ4_NL, DType::kMXFP4};
  const std::vector<DType> super = {DType::kQ2_K, DType::kQ3_K, DType::kQ4_K,
                                    DType::kQ5_K, DType::kQ6_K, DType::kIQ4_XS};
  const std::vector<DType> plain = {DType::kF16, DType::kBF16, DType::kF32, DType::kQ4_1};
  const Run runs[] = {{576, 576, quantised, plain},
                      {1536, 576, quantised, plain},
                      {576, 1536, quantised, plain},
                      {49152, 576, {DType::kQ8_0}, {}},
                      {4096, 4096, quantised, {DType::kF16}},
                      {1536, 1536, super, {}},
                      {1536, 8960, super, {}},
                      {4096, 4096, super, {}}};
  for (const Run& run : runs) {
    const std::string shape = '/' + std::to_string(run.rows) + 'x' + std::to_string(run.cols);
    for (const int64_t n : {512, 16, 4, 1}) {
      const std::string end = shape + "/n:" + std::to_string(n);
      for (const DType type : run.q8) {
        if (run.rows > 10000 && n == 512) continue;  // the head runs over the last position alone
        benchmark::RegisterBenchmark(("q8/" + std::string(dtype_name(type)) + end).c_str(), q8,
                                     table, type, run.rows, run.cols, n);
      }
      for (const DType type : run.f32) {
        benchmark::RegisterBenchmark(("f32/" + std::string(dtype_name(type)) + end).c_str(), f32,
                                     table, type, run.rows, run.cols, n);
      }
    }
  }
  for (const int64_t rows : {3, 48, 1536}) {
    for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kQ8, KvType::kQ4}) {
      const std::string name =
          std::string("attention/") + kv_type_name(type) + "/rows:" + std::to_string(rows);
      benchmark::RegisterBenchmark(name.c_str(), attention, table, type, rows, false);
      if (rows > 3) continue;  // decode: what it waits for is memory
      benchmark::RegisterBenchmark((name + "/memory").c_str(), attention, table, type, rows, true);
    }
  }
}

}  // namespace
}  // namespace cutaway::kernels

int main(int argc, char** argv) {
  const char* forced = std::getenv("CUTAWAY_FORCE_ISA");
  const auto selection = cutaway::kernels::select_table(forced == nullptr ? "" : forced);
  if (!selection.ok()) {
    std::fprintf(stderr, "%s\n", selection.error().message.c_str());
    return 2;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("kernel_table", selection->table->name);
  benchmark::AddCustomContext("processor", cutaway::cpu_features().brand);
  cutaway::kernels::register_all(selection->table);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
