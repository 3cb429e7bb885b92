// linear_cross_entropy for AVX-512: linear_cross_entropy_simd.h compiled with that instruction set.
#include "ops/linear_cross_entropy/linear_cross_entropy_simd.h"

namespace blutensor {

void use_avx512(LinearCrossEntropyKernels& kernels) {
  kernels.exponentiate_f32 = exponentiate;
  kernels.scale_f32 = scale;
  kernels.store_scaled_f32 = store_scaled;
}

}  // namespace blutensor
