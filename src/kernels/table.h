// The kernel table: every operation of the forward pass that touches rows of numbers, as function
// pointers. ref/ fills all of them and is written to be read; x86/ and arm/ override entries.
//
// Every kernel is noexcept, allocates nothing, keeps no state, and may run on any number of threads
// over disjoint outputs. Within one table the bits of an output depend on its own inputs only: not
// on how many columns, rows, queries or tiles the call covers (docs/architecture.md, Determinism).
// Pointers need no alignment beyond their element's, unless said.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/kv_layout.h"
#include "kernels/layout.h"

namespace cutaway::kernels {

// Σ q over the first and the second half of a block of 32: at most 16 · 127 in magnitude. As one
// 32-bit word it is an operand of the instructions that multiply pairs of 16 bits.
struct HalfSums {
  int16_t low, high;
  friend bool operator==(const HalfSums&, const HalfSums&) = default;
};
static_assert(sizeof(HalfSums) == 4);

// Activations quantised to 8 bits: per token and block of 32, x ≈ scale · q, q in [−127, 127].
// Row c (a token) begins at q + c·cols, scale + c·(cols/32), sum and total likewise.
struct Q8Activations {
  const int8_t* q = nullptr;
  const float* scale = nullptr;  // amax / 127; 0 for a block of zeros
  const HalfSums* sum = nullptr;
  const float* total = nullptr;  // scale · (sum.low + sum.high), rounded
  int64_t cols = 0;
};

// The same, to be written.
struct Q8Output {
  int8_t* q = nullptr;
  float* scale = nullptr;
  HalfSums* sum = nullptr;
  float* total = nullptr;
  int64_t cols = 0;

  Q8Activations view() const { return {q, scale, sum, total, cols}; }
};

// Partial attention of n query rows over one tile. Row r sees the keys [begin[r], end[r]) of the
// tile (0 ≤ begin ≤ end ≤ 64). Per row: max of the scores, Σ exp(score − max), Σ exp(score −
// max)·v, keys in order. A row that sees none gives max = −inf, sum = 0, out = 0.
struct AttentionTileArgs {
  KvTile tile;
  KvTile
      next;  // the tile that will be asked for next, to be fetched meanwhile; or null. A hint only
  int64_t d_k = 0, d_v = 0;
  int64_t n = 0;                    // query rows
  const float* const* q = nullptr;  // n pointers to d_k values
  float scale = 1;                  // score = scale · (q · k)
  float soft_cap = 0;               // > 0: score = cap · tanh(score / cap)
  const int32_t* begin = nullptr;
  const int32_t* end = nullptr;
  float* max = nullptr;  // [n]
  float* sum = nullptr;  // [n]
  float* out = nullptr;  // [n][d_v]

  // Kept beside them where a pointer is not null. Rows of the tile's first `scores_n` scores, −inf
  // for keys that a row does not see, and of its first `weights_n` weights exp(score − max), 0 for
  // those: [n] pointers, of which some may be null. And Σ weight · (score − max): [n].
  float* const* scores = nullptr;
  int64_t scores_n = kTilePositions;
  float* const* weights = nullptr;
  int64_t weights_n = kTilePositions;
  float* moment = nullptr;
};

inline constexpr int64_t kMaxTopKeys = 16;
// What attention_top found. From what there is on, indices are −1 and values 0.
struct TopKeys {
  alignas(64) int32_t index[kMaxTopKeys];
  alignas(64) float value[kMaxTopKeys];
};

struct KernelTable {
  const char* name = "";  // "ref", "avx2", …

  // y[c·y_stride + r − 16·group_begin] = Σ_k W[r][k] · x_c[k], for the rows r of groups
  // [group_begin, group_end) and columns c in [0, n). Rows of the padding are not written. By
  // layout; a null entry means that the layout takes f32 activations only (kHalf, kBrain, kFloat).
  using MatmulQ8 = void (*)(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
                            const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept;
  MatmulQ8 matmul_q8[kLayoutCount] = {};

  // The same over f32 activations x_c = x + c·x_stride and dequantised weights: every layout. This
  // is what --precise runs.
  using MatmulF32 = void (*)(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
                             const float* x, int64_t x_stride, int64_t n, float* y,
                             int64_t y_stride) noexcept;
  MatmulF32 matmul_f32[kLayoutCount] = {};

  // Quantises n tokens' values x + c·x_stride of `cols` elements each (a multiple of 32) into the
  // blocks from first_block on of rows c of `out`. Round to nearest even.
  void (*quantize_q8)(const float* x, int64_t x_stride, int64_t n, int64_t cols,
                      int64_t first_block, const Q8Output& out) noexcept = nullptr;

  // scale = sqrt(mean(x²) + eps); out = x / scale · weight. Returns scale. `out` may be x.
  float (*rms_norm)(const float* x, const float* weight, float eps, int64_t n,
                    float* out) noexcept = nullptr;

  // Rotates one head in place: pairs (2i, 2i+1) when interleaved, else (i, i + n_rot/2), for
  // i < n_rot/2, by the angle whose cosine and sine are given.
  void (*rope)(float* x, const float* cos, const float* sin, int64_t n_rot,
               bool interleaved) noexcept = nullptr;

  void (*add)(const float* a, const float* b, int64_t n, float* out) noexcept = nullptr;
  // out = silu(gate) · up, silu(x) = x / (1 + exp(−x)).
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out) noexcept = nullptr;
  // out = gelu(gate) · up; up == nullptr: gelu(gate). gelu(x) = x/2 · (1 + tanh(√(2/π) · (x +
  // 0.044715 x³))), the form that models were trained with ("gelu_pytorch_tanh", "gelu_new").
  void (*gelu_mul)(const float* gate, const float* up, int64_t n, float* out) noexcept = nullptr;
  // out = cap · tanh(x / cap). `out` may be x.
  void (*soft_cap)(const float* x, float cap, int64_t n, float* out) noexcept = nullptr;

  // Writes one position's key / value (d elements) into a tile's memory at position p of the tile
  // (kv_layout.h says how the quantised types round).
  void (*store_key)(KvType type, const float* key, int64_t d, int64_t p,
                    void* k) noexcept = nullptr;
  void (*store_value)(KvType type, const float* value, int64_t d, int64_t p,
                      void* v) noexcept = nullptr;

  void (*attention_tile)(const AttentionTileArgs& args) noexcept = nullptr;
  // Merges a tile's (max, sum, out) into a running one, in tile order:
  // m = max(M, m'); S = S·exp(M − m) + s'·exp(m' − m); O likewise. Starts from (−inf, 0, 0).
  void (*attention_merge)(float tile_max, float tile_sum, const float* tile_out, int64_t d_v,
                          float* max, float* sum, float* out) noexcept = nullptr;
  // out /= sum.
  void (*attention_finish)(float sum, int64_t d_v, float* out) noexcept = nullptr;
  // The k ≤ kMaxTopKeys largest of weights[t][i] · factor[t], i in [0, 64), t in [0, tiles),
  // factors ≥ 0: as falling values with their indices 64·t + i, the smaller index first among
  // equals. Only what is above 0 counts.
  void (*attention_top)(const float* weights, const float* factor, int64_t tiles, int64_t k,
                        TopKeys& out) noexcept = nullptr;
};

// Why a table was, or was not, chosen; in the order of preference, ending with "ref".
struct TableChoice {
  std::string name;
  bool available = false;
  bool chosen = false;
  std::string reason;  // "chosen", "the processor has no avx512_vnni", "not built for this target"
};

// The tables in order of preference, the best available one chosen. `forced` (CUTAWAY_FORCE_ISA's
// value, or empty) chooses instead; error kUnsupported when it is not available, kInvalidArgument
// when there is no such name, both naming what is.
struct Selection {
  const KernelTable* table = nullptr;
  std::vector<TableChoice> choices;
};
Result<Selection> select_table(const std::string& forced);

// Complete tables, for tests: null when this machine cannot run it.
const KernelTable* ref_table() noexcept;
const KernelTable* avx2_table() noexcept;
const KernelTable* avx512_table() noexcept;
const KernelTable* neon_table() noexcept;

}  // namespace cutaway::kernels
