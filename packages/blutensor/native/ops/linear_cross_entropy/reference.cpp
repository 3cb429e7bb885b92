// The portable passes of linear_cross_entropy as entries of the kernel table.
#include "ops/linear_cross_entropy/reference.h"

namespace blutensor {

void use_reference(LinearCrossEntropyKernels& kernels) {
  kernels.exponentiate_f32 = exponentiate_reference<float>;
  kernels.scale_f32 = scale_reference<float>;
  kernels.store_scaled_f32 = store_scaled_reference<float>;
}

}  // namespace blutensor
