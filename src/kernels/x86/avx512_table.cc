#include "kernels/tables.h"
#include "kernels/x86/avx2.h"
#undef CUTAWAY_INLINE  // each table's header has its own, which is the same
#include "kernels/x86/avx512.h"

namespace cutaway::kernels {

constinit const KernelTable kAvx512Table = {
    .name = "avx512",
    .matmul_q8 = {avx512::matmul_q8<Layout::kNibbleMin>, avx512::matmul_q8<Layout::kNibble>,
                  avx512::matmul_q8<Layout::kByte>, nullptr, nullptr, nullptr,
                  avx512::matmul_q8<Layout::kFiveMin>, avx512::matmul_q8<Layout::kFive>,
                  avx512::matmul_q8<Layout::kNonlinear>, avx512::matmul_q8<Layout::kMicro>,
                  avx512::matmul_super_q8<Layout::kSuper2>,
                  avx512::matmul_super_q8<Layout::kSuper3>,
                  avx512::matmul_super_q8<Layout::kSuper4>,
                  avx512::matmul_super_q8<Layout::kSuper5>,
                  avx512::matmul_super_q8<Layout::kSuper6>,
                  avx512::matmul_super_q8<Layout::kSuperCode>},
    .matmul_f32 = {avx512::matmul_f32<Layout::kNibbleMin>, avx512::matmul_f32<Layout::kNibble>,
                   avx512::matmul_f32<Layout::kByte>, avx512::matmul_f32<Layout::kHalf>,
                   avx512::matmul_f32<Layout::kBrain>, avx512::matmul_f32<Layout::kFloat>,
                   avx512::matmul_f32<Layout::kFiveMin>, avx512::matmul_f32<Layout::kFive>,
                   avx512::matmul_f32<Layout::kNonlinear>, avx512::matmul_f32<Layout::kMicro>,
                   avx512::matmul_f32<Layout::kSuper2>, avx512::matmul_f32<Layout::kSuper3>,
                   avx512::matmul_f32<Layout::kSuper4>, avx512::matmul_f32<Layout::kSuper5>,
                   avx512::matmul_f32<Layout::kSuper6>, avx512::matmul_f32<Layout::kSuperCode>},
    .quantize_q8 = avx512::quantize_q8,
    .rms_norm = avx512::rms_norm,
    .rope = avx512::rope,
    .add = avx512::add,
    .silu_mul = avx512::silu_mul,
    .gelu_mul = avx512::gelu_mul,
    .soft_cap = avx512::soft_cap,
    .store_key = avx2::store_key,
    .store_value = avx2::store_value,
    .attention_tile = avx512::attention_tile,
    .attention_merge = avx512::attention_merge,
    .attention_finish = avx512::attention_finish,
    .attention_top = avx512::attention_top,
};

}  // namespace cutaway::kernels
