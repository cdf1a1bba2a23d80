#include "kernels/ref/ref.h"
#include "kernels/tables.h"

namespace cutaway::kernels {

constinit const KernelTable kRefTable = {
    .name = "ref",
    .matmul_q8 = {ref::matmul_q8<Layout::kNibbleMin>, ref::matmul_q8<Layout::kNibble>,
                  ref::matmul_q8<Layout::kByte>, nullptr, nullptr, nullptr,
                  ref::matmul_q8<Layout::kFiveMin>, ref::matmul_q8<Layout::kFive>,
                  ref::matmul_q8<Layout::kNonlinear>, ref::matmul_q8<Layout::kMicro>,
                  ref::matmul_super_q8<Layout::kSuper2>, ref::matmul_super_q8<Layout::kSuper3>,
                  ref::matmul_super_q8<Layout::kSuper4>, ref::matmul_super_q8<Layout::kSuper5>,
                  ref::matmul_super_q8<Layout::kSuper6>, ref::matmul_super_q8<Layout::kSuperCode>},
    .matmul_f32 = {ref::matmul_f32<Layout::kNibbleMin>, ref::matmul_f32<Layout::kNibble>,
                   ref::matmul_f32<Layout::kByte>, ref::matmul_f32<Layout::kHalf>,
                   ref::matmul_f32<Layout::kBrain>, ref::matmul_f32<Layout::kFloat>,
                   ref::matmul_f32<Layout::kFiveMin>, ref::matmul_f32<Layout::kFive>,
                   ref::matmul_f32<Layout::kNonlinear>, ref::matmul_f32<Layout::kMicro>,
                   ref::matmul_super_f32<Layout::kSuper2>, ref::matmul_super_f32<Layout::kSuper3>,
                   ref::matmul_super_f32<Layout::kSuper4>, ref::matmul_super_f32<Layout::kSuper5>,
                   ref::matmul_super_f32<Layout::kSuper6>,
                   ref::matmul_super_f32<Layout::kSuperCode>},
    .quantize_q8 = ref::quantize_q8,
    .rms_norm = ref::rms_norm,
    .rope = ref::rope,
    .add = ref::add,
    .silu_mul = ref::silu_mul,
    .gelu_mul = ref::gelu_mul,
    .soft_cap = ref::soft_cap,
    .store_key = ref::store_key,
    .store_value = ref::store_value,
    .attention_tile = ref::attention_tile,
    .attention_merge = ref::attention_merge,
    .attention_finish = ref::attention_finish,
    .attention_top = ref::attention_top,
};

}  // namespace cutaway::kernels
