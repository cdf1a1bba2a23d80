#include "kernels/tables.h"
#include "kernels/x86/avx2.h"

namespace cutaway::kernels {

constinit const KernelTable kAvx2Table = {
    .name = "avx2",
    .matmul_q8 = {avx2::matmul_q8<Layout::kNibbleMin>, avx2::matmul_q8<Layout::kNibble>,
                  avx2::matmul_q8<Layout::kByte>, nullptr, nullptr, nullptr,
                  avx2::matmul_q8<Layout::kFiveMin>, avx2::matmul_q8<Layout::kFive>,
                  avx2::matmul_q8<Layout::kNonlinear>, avx2::matmul_q8<Layout::kMicro>,
                  avx2::matmul_super_q8<Layout::kSuper2>, avx2::matmul_super_q8<Layout::kSuper3>,
                  avx2::matmul_super_q8<Layout::kSuper4>, avx2::matmul_super_q8<Layout::kSuper5>,
                  avx2::matmul_super_q8<Layout::kSuper6>,
                  avx2::matmul_super_q8<Layout::kSuperCode>},
    .matmul_f32 = {avx2::matmul_f32<Layout::kNibbleMin>, avx2::matmul_f32<Layout::kNibble>,
                   avx2::matmul_f32<Layout::kByte>, avx2::matmul_f32<Layout::kHalf>,
                   avx2::matmul_f32<Layout::kBrain>, avx2::matmul_f32<Layout::kFloat>,
                   avx2::matmul_f32<Layout::kFiveMin>, avx2::matmul_f32<Layout::kFive>,
                   avx2::matmul_f32<Layout::kNonlinear>, avx2::matmul_f32<Layout::kMicro>,
                   avx2::matmul_f32<Layout::kSuper2>, avx2::matmul_f32<Layout::kSuper3>,
                   avx2::matmul_f32<Layout::kSuper4>, avx2::matmul_f32<Layout::kSuper5>,
                   avx2::matmul_f32<Layout::kSuper6>, avx2::matmul_f32<Layout::kSuperCode>},
    .quantize_q8 = avx2::quantize_q8,
    .rms_norm = avx2::rms_norm,
    .rope = avx2::rope,
    .add = avx2::add,
    .silu_mul = avx2::silu_mul,
    .gelu_mul = avx2::gelu_mul,
    .soft_cap = avx2::soft_cap,
    .store_key = avx2::store_key,
    .store_value = avx2::store_value,
    .attention_tile = avx2::attention_tile,
    .attention_merge = avx2::attention_merge,
    .attention_finish = avx2::attention_finish,
    .attention_top = avx2::attention_top,
};

}  // namespace cutaway::kernels
