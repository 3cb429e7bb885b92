#include "ops/copy/copy_simd.h"

namespace blutensor {

void use_avx2(CopyKernels& kernels) { use_simd(kernels); }

}  // namespace blutensor
