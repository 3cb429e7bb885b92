// The optimizers on CUDA, by file.
#pragma once

#include "ops/matmul/operand.h"

namespace blutensor {

void adamw_cuda(const Launch& launch, Execution& run);         // adamw_cuda.cu
void sgd_cuda(const Launch& launch, Execution& run);           // sgd_cuda.cu
void sgd_momentum_cuda(const Launch& launch, Execution& run);  // sgd_cuda.cu
void grad_norm_cuda(const Launch& launch, Execution& run);     // grad_norm_cuda.cu

}  // namespace blutensor
