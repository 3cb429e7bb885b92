#include "ops/cross_entropy/cross_entropy_simd.h"

namespace blutensor {

void use_avx2(CrossEntropyKernels& kernels) { kernels = {row_sum, probabilities}; }

}  // namespace blutensor
