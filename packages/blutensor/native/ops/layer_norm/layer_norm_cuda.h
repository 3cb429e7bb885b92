// The two halves of layer_norm on CUDA.
#pragma once

#include "ops/matmul/operand.h"

namespace blutensor {

void layer_norm_forward_cuda(const Launch& launch, Execution& run);
void layer_norm_backward_cuda(const Launch& launch, Execution& run);
void layer_norm_backward_in_place_cuda(const Launch& launch, Execution& run);

}  // namespace blutensor
