#include "ops/reduce/reduce_simd.h"

namespace blutensor {

void use_reference(ReduceKernels& kernels) { use_float32(kernels); }

}  // namespace blutensor
