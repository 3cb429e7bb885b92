// layer_norm for AVX2: layer_norm_simd.h compiled with that instruction set.
#include "ops/layer_norm/layer_norm_simd.h"

namespace blutensor {

void use_avx2(LayerNormKernels& kernels) {
  kernels.forward_f32 = forward_rows;
  kernels.backward_f32 = backward_rows;
}

}  // namespace blutensor
