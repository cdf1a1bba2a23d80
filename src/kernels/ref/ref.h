// The reference kernels, written to be read: what every other table is compared with. Contracts are
// in table.h. Internal to kernels/.
#pragma once

#include "kernels/table.h"

namespace cutaway::kernels::ref {

template <Layout layout>
void matmul_q8(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
               const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept;
template <Layout layout>
void matmul_f32(const PackedMatrix& w, int64_t group_begin, int64_t group_end, const float* x,
                int64_t x_stride, int64_t n, float* y, int64_t y_stride) noexcept;

// The layouts of super-blocks.
template <Layout layout>
void matmul_super_q8(const PackedMatrix& w, int64_t group_begin, int64_t group_end,
                     const Q8Activations& x, int64_t n, float* y, int64_t y_stride) noexcept;
template <Layout layout>
void matmul_super_f32(const PackedMatrix& w, int64_t group_begin, int64_t group_end, const float* x,
                      int64_t x_stride, int64_t n, float* y, int64_t y_stride) noexcept;

void quantize_q8(const float* x, int64_t x_stride, int64_t n, int64_t cols, int64_t first_block,
                 const Q8Output& out) noexcept;
float rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) noexcept;
void rope(float* x, const float* cos, const float* sin, int64_t n_rot, bool interleaved) noexcept;
void add(const float* a, const float* b, int64_t n, float* out) noexcept;
void silu_mul(const float* gate, const float* up, int64_t n, float* out) noexcept;
void gelu_mul(const float* gate, const float* up, int64_t n, float* out) noexcept;
void soft_cap(const float* x, float cap, int64_t n, float* out) noexcept;

void store_key(KvType type, const float* key, int64_t d, int64_t p, void* k) noexcept;
void store_value(KvType type, const float* value, int64_t d, int64_t p, void* v) noexcept;
void attention_tile(const AttentionTileArgs& args) noexcept;
void attention_merge(float tile_max, float tile_sum, const float* tile_out, int64_t d_v, float* max,
                     float* sum, float* out) noexcept;
void attention_finish(float sum, int64_t d_v, float* out) noexcept;
void attention_top(const float* weights, const float* factor, int64_t tiles, int64_t k,
                   TopKeys& out) noexcept;

}  // namespace cutaway::kernels::ref
