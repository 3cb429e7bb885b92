// The portable optimizer kernels as entries of the kernel table.
#include "ops/optimizer/reference.h"

#include <cmath>

namespace blutensor {

void use_reference(OptimizerKernels& kernels) {
  kernels.adamw_f32 = adamw_reference<float>;
  kernels.sgd_f32 = sgd_reference<float>;
  kernels.sum_squares_f32 = [](const float* x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    return sum;
  };
}

}  // namespace blutensor
