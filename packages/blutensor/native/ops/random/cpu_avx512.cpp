#include "ops/random/random_simd.h"

namespace blutensor {

void use_avx512(RandomKernels& kernels) { use_simd(kernels); }

}  // namespace blutensor
