#include "ops/softmax/softmax_simd.h"

namespace blutensor {

void use_avx512(SoftmaxKernels& kernels) {
  kernels = {softmax_forward_row, softmax_forward_columns, softmax_backward_row};
}

}  // namespace blutensor
