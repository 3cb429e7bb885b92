#include "ops/random/random_simd.h"

namespace blutensor {

void use_avx2(RandomKernels& kernels) { use_simd(kernels); }

}  // namespace blutensor
