// The optimizers for AVX2: optimizer_simd.h compiled with that instruction set.
#include "ops/optimizer/optimizer_simd.h"

namespace blutensor {

void use_avx2(OptimizerKernels& kernels) {
  kernels.adamw_f32 = adamw;
  kernels.sgd_f32 = sgd;
  kernels.sum_squares_f32 = sum_squares;
}

}  // namespace blutensor
