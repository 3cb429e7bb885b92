#include "ops/reduce/reduce_simd.h"

namespace blutensor {

void use_avx512(ReduceKernels& kernels) { use_float32(kernels); }

}  // namespace blutensor
