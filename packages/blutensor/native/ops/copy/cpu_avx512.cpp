#include "ops/copy/copy_simd.h"

namespace blutensor {

void use_avx512(CopyKernels& kernels) { use_simd(kernels); }

}  // namespace blutensor
