#include "ops/elementwise/elementwise_simd.h"

namespace blutensor {

void use_avx512(ElementwiseKernels& kernels) { use_float32(kernels); }

}  // namespace blutensor
