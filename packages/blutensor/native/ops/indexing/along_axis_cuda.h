// take_along_axis on CUDA (along_axis_cuda.cu).
#pragma once

#include "ops/matmul/operand.h"

namespace blutensor {

void take_along_axis_cuda(const Launch& launch);
void take_along_axis_backward_cuda(const Launch& launch, Execution& run);

}  // namespace blutensor
