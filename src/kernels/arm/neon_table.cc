#include "kernels/arm/neon.h"
#include "kernels/ref/ref.h"
#include "kernels/tables.h"

namespace cutaway::kernels {

constinit const KernelTable kNeonTable = {
    .name = "neon",
    .matmul_q8 = {neon::matmul_q8<Layout::kNibbleMin>, neon::matmul_q8<Layout::kNibble>,
                  neon::matmul_q8<Layout::kByte>, nullptr, nullptr, nullptr,
                  neon::matmul_q8<Layout::kFiveMin>, neon::matmul_q8<Layout::kFive>,
                  neon::matmul_q8<Layout::kNonlinear>, neon::matmul_q8<Layout::kMicro>,
                  neon::matmul_super_q8<Layout::kSuper2>, neon::matmul_super_q8<Layout::kSuper3>,
                  neon::matmul_super_q8<Layout::kSuper4>, neon::matmul_super_q8<Layout::kSuper5>,
                  neon::matmul_super_q8<Layout::kSuper6>,
                  neon::matmul_super_q8<Layout::kSuperCode>},
    .matmul_f32 = {neon::matmul_f32<Layout::kNibbleMin>, neon::matmul_f32<Layout::kNibble>,
                   neon::matmul_f32<Layout::kByte>, neon::matmul_f32<Layout::kHalf>,
                   neon::matmul_f32<Layout::kBrain>, neon::matmul_f32<Layout::kFloat>,
                   neon::matmul_f32<Layout::kFiveMin>, neon::matmul_f32<Layout::kFive>,
                   neon::matmul_f32<Layout::kNonlinear>, neon::matmul_f32<Layout::kMicro>,
                   neon::matmul_f32<Layout::kSuper2>, neon::matmul_f32<Layout::kSuper3>,
                   neon::matmul_f32<Layout::kSuper4>, neon::matmul_f32<Layout::kSuper5>,
                   neon::matmul_f32<Layout::kSuper6>, neon::matmul_f32<Layout::kSuperCode>},
    .quantize_q8 = neon::quantize_q8,
    .rms_norm = neon::rms_norm,
    .rope = neon::rope,
    .add = neon::add,
    .silu_mul = neon::silu_mul,
    .gelu_mul = neon::gelu_mul,
    .soft_cap = neon::soft_cap,
    .store_key = neon::store_key,
    .store_value = neon::store_value,
    .attention_tile = neon::attention_tile,
    .attention_merge = neon::attention_merge,
    .attention_finish = neon::attention_finish,
    .attention_top = ref::attention_top,
};

}  // namespace cutaway::kernels
